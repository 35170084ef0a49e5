"""Rules of the model's shape."""

from ml_collections import ConfigDict

from configs.rules import attention, growth, positions


def problems(config: ConfigDict) -> list[str]:
    """Returns every problem of a config.model, a line each; the fields by themselves must be sound."""
    model = config.model
    if results := attention.pattern_problems(config):
        return results
    if model.head_dim is None and model.width % model.num_heads:
        results.append(
            f"model.num_heads = {model.num_heads}: must divide model.width = {model.width}, or set model.head_dim"
        )
    kv_heads = model.num_kv_heads or model.num_heads
    if model.num_heads % kv_heads:
        divisors = [g for g in range(1, model.num_heads + 1) if model.num_heads % g == 0]
        results.append(
            f"model.num_kv_heads = {kv_heads}: must divide model.num_heads = {model.num_heads}, so one of "
            f"{', '.join(map(str, divisors))}"
        )
    if model.norm_bias and model.norm == "rmsnorm":
        results.append("model.norm_bias = True: rmsnorm has no bias; set model.norm = 'layernorm'")
    if model.mup_base_width is not None and model.attention.kind == "mla":
        results.append(
            f"model.mup_base_width = {model.mup_base_width}: latent attention's ranks do not grow with width as muP "
            "has it; must be unset with model.attention.kind = 'mla'"
        )
    return [*results, *growth.problems(config), *attention.problems(config), *positions.problems(config)]
