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
    block = {
        "attention_norm": layer_norm,
        "attention": attention.kind_of(model).parameters(model),
        "mlp_norm": layer_norm,
        "mlp": mlp.parameters(model),
    }
    schemes = {
        f"schemes.{kind}": positions.parameters(model, kind, layers) for kind, layers in layers_of(model).items()
    }
    norms = {"embedding_norm": layer_norm, "norm": layer_norm} if model.embedding_norm else {"norm": layer_norm}
    blocks = stacked(nested(block), tuple(range(model.num_layers)))
    return {**embedding, **switches.model_parameters(model), **nested({**schemes, "blocks": blocks, **norms}), **head}


def layers_of(model: ConfigDict) -> dict[str, tuple[int, ...]]:
    """Returns the layers of each kind of positions that a config.model has, kinds sorted."""
    plans = pattern.plans(model)
    return {
        kind: tuple(layer for layer, plan in enumerate(plans) if plan.position == kind)
        for kind in sorted({plan.position for plan in plans})
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
