"""The one place that decides which attention kernel runs."""

from collections.abc import Callable

from ml_collections import ConfigDict

from configs.errors import ConfigError, nearest
from configs.rules import kernels as declared
from configs.rules import layers
from configs.rules.attention import score_dims
from configs.schema.allowed import either
from models import pattern
from models.kernels.kernel import Kernel, Needs
from models.kernels.registry import KERNELS


def choose(kernel: str, needs: Needs) -> str:
    """Returns the name of the kernel that runs: `kernel` itself, or what `auto` comes to. Pure.

    `auto` takes the kernel with the lowest rank of those that can serve the call and want it: one query (decoding), and
    whatever reads the scores, `reference`; the CPU `blocked`; a GPU `cudnn` where it can do the whole job inside the
    kernel; a TPU `splash` where that can; `fused` for what these cannot; otherwise `xla`, or `blocked` where that would
    need too much memory or cannot do it.

    Args:
        kernel: auto or one of KERNELS.
        needs: what is asked of it.

    Raises:
        ConfigError: an unknown kernel, or one that cannot do what is asked: there is no silent fallback.
    """
    if kernel == "auto":
        able = [(one.rank, name) for name, one in KERNELS.items() if one.wants(needs) and obstacle(name, needs) is None]
        return min(able)[1]
    if kernel not in KERNELS:
        names = either(["auto", *KERNELS])
        raise ConfigError(f"model.attention.kernel = {kernel!r}: must be {names}{nearest(kernel, KERNELS)}")
    if reason := obstacle(kernel, needs):
        raise ConfigError(f"model.attention.kernel = {kernel!r}: {reason}")
    return kernel


def obstacle(name: str, needs: Needs) -> str | None:
    """Returns why a kernel cannot serve a call, or None."""
    kernel, known = KERNELS[name], declared.KERNELS[name]
    if needs.scores and not known.whole_scores:
        holding = either(declared.WHOLE_SCORES)
        return f"never holds the whole scores, which the positions read (CoPE); {holding} does"
    if needs.weighting and not known.whole_scores:
        holding = either(declared.WHOLE_SCORES)
        return f"makes weights by a plain softmax, and {needs.weighting} needs the whole scores; {holding} holds them"
    if needs.soft_cap is not None and not kernel.soft_cap:
        having = _everywhere(lambda one: one.soft_cap)
        return f"has no soft cap (model.attention.soft_cap = {needs.soft_cap}); {having} have"
    if needs.sinks and not kernel.sinks:
        return f"has no attention sinks (model.attention.sinks); {_everywhere(lambda one: one.sinks)} have"
    if kernel.platforms and needs.platform not in kernel.platforms:
        return f"runs on {known.devices} alone, and this is {needs.platform}"
    return kernel.lacks(needs)


def _everywhere(has: Callable[[Kernel], bool]) -> str:
    """Returns the kernels of every platform that have something, as words."""
    return either([name for name, one in KERNELS.items() if not one.platforms and has(one)], "and")


def kernel_for(config: ConfigDict, *, length: int, platform: str, packed: bool, cut: bool = False) -> str:
    """Returns the name of the kernel that training runs, for run.json.

    Args:
        config: a resolved config.model.
        length: tokens per row.
        platform: cpu, gpu or tpu.
        packed: whether the batches carry segments and positions.
        cut: whether devices share a row's tokens (mesh.context).

    Raises:
        ConfigError: the configured kernel cannot run.
    """
    from models.declared.attention import weighting_of
    from models.positions import has_head_bias, places_of

    attention = config.attention
    dtype = config.dtype if config.dtype != "auto" else "float32" if platform == "cpu" else "bfloat16"
    windows = {window or None for window in attention.window_pattern} or {attention.window}
    kinds = set(config.position.pattern) or {config.position.kind}
    every = {heads[:3]: pattern.of_layer(config, layer) for layer, heads in enumerate(layers.heads(config))}
    names = {
        choose(
            attention.kernel,
            Needs(
                platform=platform,
                dtype=dtype,
                head_dim=head_dim,
                value_dim=value_dim,
                q_len=length,
                kv_len=length,
                bias="bias" in places_of(kind),
                by_head=has_head_bias(kind),
                scores="scores" in places_of(kind),
                weighting=weighting_of(config),
                soft_cap=attention.soft_cap,
                sinks=attention.sinks,
                window=window,
                segments=packed,
                positions=packed or cut,
                aligned=not cut,
                trains=True,
            ),
        )
        for window in windows
        for kind in kinds
        for head_dim, value_dim in map(score_dims, every.values())
    }
    return "+".join(sorted(names))
