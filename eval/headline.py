"""The main number of an evaluation, for its line in the terminal."""

import math
from collections.abc import Mapping
from typing import Any, TypeGuard


def number(name: str, result: Mapping[str, Any]) -> str:
    """Returns an evaluation's main number with its unit; empty if it has none or it is not finite."""
    return "; ".join(text for text in _NUMBERS.get(name, _nothing)(result) if text)


def _nothing(result: Mapping[str, Any]) -> list[str]:
    return []


def _loss(result: Mapping[str, Any]) -> list[str]:
    low, high = (*(result.get("loss_interval") or ()), math.nan, math.nan)[:2]
    ends = f" [{low:.4f}, {high:.4f}]" if _finite(low) and _finite(high) else ""
    return [f"loss {result['loss']:.4f}{ends} nats/token" if _finite(result.get("loss")) else ""]


def _retrieval(result: Mapping[str, Any]) -> list[str]:
    return [f"accuracy {100 * result['accuracy']:.1f}%" if _finite(result.get("accuracy")) else ""]


def _throughput(result: Mapping[str, Any]) -> list[str]:
    rates = {part: (result.get(part) or {}).get("tokens_per_second") for part in ("train", "prefill", "decode")}
    return [f"{part} {rate:,.0f} tokens/s" for part, rate in rates.items() if _finite(rate)]


def _memory(result: Mapping[str, Any]) -> list[str]:
    peak = ((result.get("compiled") or {}).get("train_step") or {}).get("peak")
    return [f"train step {peak / 2**20:,.1f} MiB" if _finite(peak) else ""]


def _finite(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


_NUMBERS = {"loss": _loss, "retrieval": _retrieval, "throughput": _throughput, "memory": _memory}
