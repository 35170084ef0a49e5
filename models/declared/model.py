"""Every parameter of a whole model."""

from ml_collections import ConfigDict

from models import pattern
from models.declared import attention, mlp, positions, switches
from models.declared.parameter import Matrix, Parameter, Parameters, nested, norm, stacked


def parameters(model: ConfigDict) -> Parameters:
    """Returns the declaration of each parameter of a resolved config.model, by its dotted path.

    Raises:
        ConfigError: an unknown kind of position, attention or MLP.
    """
    layer_norm = norm(model.width, bias=model.norm_bias and model.norm == "layernorm")
    embedding = {"embedding": _table(model, "embedding", multiplies=model.tie_embeddings)}
    head = {} if model.tie_embeddings else {"head": _table(model, "head", multiplies=True)}
    plans = pattern.plans(model)
    blocks: Parameters = {}
    for path, layers in pattern.stacks(model).items():
        of_layer = pattern.of_layer(model, layers[0])
        block = {
            "attention_norm": layer_norm,
            "attention": attention.parameters(of_layer, own_kv=plans[layers[0]].kv_back == 0),
            "mlp_norm": layer_norm,
            "mlp": mlp.parameters(model),
        }
        blocks |= nested({path: stacked(nested(block), layers)})
    schemes = {
        f"schemes.{name}": positions.parameters(pattern.of_layer(model, layers[0]), plans[layers[0]].position, layers)
        for name, layers in layers_of(model).items()
    }
    norms = {"embedding_norm": layer_norm, "norm": layer_norm} if model.embedding_norm else {"norm": layer_norm}
    shared = switches.model_parameters(model)
    return {**embedding, **shared, **nested(schemes), **blocks, **nested(norms), **head}


def layers_of(model: ConfigDict) -> dict[str, tuple[int, ...]]:
    """Returns the layers of each scheme that a config.model has, by its name (`LayerPlan.scheme`), names sorted."""
    plans = pattern.plans(model)
    return {
        name: tuple(layer for layer, plan in enumerate(plans) if plan.scheme == name)
        for name in sorted({plan.scheme for plan in plans})
    }


def _table(model: ConfigDict, name: str, *, multiplies: bool) -> Parameter:
    # Not `cast`: rows are looked up in float32, and the output matrix is cast and transposed as one (`output_table`).
    return Parameter(
        shape=(model.vocab_size, model.width),
        start=Matrix(((name, model.width),), model.mup_base_width or model.width),
        part=name,
        group=name,
        decay=True,
        multiplies=multiplies,
        axes=("vocab", "embed"),
    )
