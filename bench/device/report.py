"""The output of `bench.device`: device.json and device.md; both begin with what is wrong."""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

SCHEMA = 1
GIB = 2**30
SHOWN = 5  # parts of the model whose share of the time is shown

Found = Mapping[str, Mapping[str, Any]]


def wrong(result: Found) -> list[str]:
    """Returns what is wrong, over all parts."""
    return [line for part in result.values() for line in part.get("wrong", ())]


def not_run(result: Found) -> list[str]:
    """Returns what was not run, and why."""
    return [f"{name}: {part['not_run']}" for name, part in result.items() if part.get("not_run")]


def write(folder: Path, result: Found) -> None:
    """Writes both files atomically."""
    content = {
        "wrong": wrong(result),
        "not_run": not_run(result),
        "schema": SCHEMA,
        "took": sum(part["took"] for part in result.values()),
        "parts": result,
    }
    for name, text in (("device.json", json.dumps(content, indent=1) + "\n"), ("device.md", markdown(result))):
        work = folder / f".{name}"
        work.write_text(text, encoding="utf-8")
        os.replace(work, folder / name)


def markdown(result: Found) -> str:
    """Returns the report as Markdown."""
    return "\n".join(lines(result)) + "\n"


def lines(result: Found) -> Iterator[str]:
    """Yields the report's lines."""
    bad, absent = wrong(result), not_run(result)
    yield f"# {_device(result)}: " + (f"{len(bad)} wrong" if bad else "nothing is wrong")
    yield ""
    yield from (f"- {_cell(line)}" for line in bad)
    yield from (f"- not run: {_cell(line)}" for line in absent)
    if bad or absent:
        yield ""
    yield from _about(result.get("device", {}))
    yield from _table(("part", "status", "seconds"), [(n, p["status"], f"{p['took']:.0f}") for n, p in result.items()])
    yield from _equivalence(result.get("equivalence", {}))
    yield from _training(result)
    yield from _decoding(result)
    yield from _packs(result.get("packs", {}))
    yield from _profiles(result)


def _device(result: Found) -> str:
    about = result.get("device", {}).get("device")
    return f"{about['kind']} ({about['platform']})" if about else "unknown device"


def _about(part: Mapping[str, Any]) -> Iterator[str]:
    if "peak" not in part:
        return
    best = part["peak"]
    versions = ", ".join(f"{name} {version}" for name, version in part["versions"].items())
    yield f"Python {part['python']}, {versions}; {part['devices']} device(s)."
    published = best["published"]
    beside = (
        f" (published: {published['flops'] / 1e12:.0f} and {published['bandwidth'] / 1e9:.0f})" if published else ""
    )
    yield (
        f"Measured peaks: {best['flops'] / 1e12:.3g} TFLOP/s ({best['dtype']}), {best['bandwidth'] / 1e9:.4g} GB/s"
        f"{beside}."
    )
    yield ""


def _equivalence(part: Mapping[str, Any]) -> Iterator[str]:
    if "rows" not in part:
        return
    worst: dict[tuple[str, str, str], float] = {}
    count: dict[tuple[str, str, str], int] = {}
    reasons: dict[tuple[str, str, str], str] = {}
    for row in part["rows"]:
        key = (row["config"], row["what"], row["dtype"])
        count.setdefault(key, 0)
        if row.get("reason") is not None:
            reasons[key] = row["reason"]
        elif row.get("relative") is not None:
            count[key] += 1
            worst[key] = max(worst.get(key, 0.0), row["relative"])
    yield "## Equivalence with the reference"
    yield ""
    rows = [
        (*key, str(number), f"{worst[key]:.1e}" if key in worst else "", "" if key in worst else reasons.get(key, ""))
        for key, number in count.items()
    ]
    yield from _table(("config", "what", "dtype", "comparisons", "largest relative error", "why none"), rows)


def _training(result: Found) -> Iterator[str]:
    rows = []
    for name, part in result.items():
        if not name.startswith("train ") or "seconds" not in part:
            continue
        other = result.get(name.replace("train", "peer", 1), {}).get("tokens_per_second")
        memory = part["memory"]
        rows.append(
            (
                name.removeprefix("train "),
                part["kernel"],
                f"{part['rows']} x {part['length']}",
                f"{part['tokens_per_second']:,.0f}",
                _percent(part["mfu"]) or f"{_percent(part['mfu_measured_peak'])} of the measured peak",
                f"{part['tokens_per_second'] / other:.2f}x" if other else "",
                f"{part['losses'][0]:.3f} to {part['losses'][-1]:.3f}",
                _size(memory["compiled"]),
                _size(memory["measured"]) or "not counted",
            )
        )
    if rows:
        yield "## Training"
        yield ""
        names = ("preset", "kernel", "batch", "tokens/s", "MFU", "beside torch.compile", "loss", "compiled", "measured")
        yield from _table(names, rows)


def _decoding(result: Found) -> Iterator[str]:
    rows = []
    for name, part in result.items():
        if not name.startswith("decode "):
            continue
        peer = result.get(name.replace("decode", "peer", 1), {}).get("decode", ())
        others = {one["rows"]: one.get("tokens_per_second") for one in peer}
        for one in part.get("programs", ()):
            if "reason" in one:
                rows.append((name.removeprefix("decode "), one["program"], str(one["rows"]), "", one["reason"]))
                continue
            other = others.get(one["rows"]) if one["program"] == "decode" else None
            speed = one["tokens_per_second"]
            # transformers' generation is timed with its prompt, ours without: noted below the table
            beside = f"{speed / other:.2f}x" if other else ""
            rows.append((name.removeprefix("decode "), one["program"], str(one["rows"]), f"{speed:,.0f}", beside))
    if rows:
        yield "## Prefill and decode"
        yield ""
        yield from _table(("preset", "program", "batch", "tokens/s", "beside transformers"), rows)
        yield "transformers' generation is timed with the prefill of its prompt, ours without."
        yield ""


def _packs(part: Mapping[str, Any]) -> Iterator[str]:
    if "packs" not in part:
        return
    yield "## Packs of tiny runs"
    yield ""
    alone = part["packs"][0]["steps_per_second"]
    rows = [
        (str(one["runs"]), f"{one['steps_per_second']:,.1f}", f"{one['steps_per_second'] / alone:.2f}x")
        for one in part["packs"]
    ]
    yield from _table(("runs", "runs' steps/s", "beside one"), rows)


def _profiles(result: Found) -> Iterator[str]:
    rows = []
    for name, part in result.items():
        for program, entry in part.get("programs", {}).items() if name.startswith("profile ") else ():
            most = sorted(entry["shares"].items(), key=lambda item: -item[1])[:SHOWN]
            message = ", ".join(f"{label} {100 * share:.0f}%" for label, share in most if share)
            rows.append((name.removeprefix("profile "), program, f"{1000 * entry['seconds']:.3g} ms", message))
    if rows:
        yield "## Where the time goes"
        yield ""
        yield from _table(("preset", "program", "a call", "largest parts"), rows)


def _table(names: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield "| " + " | ".join(names) + " |"
    yield "|---" * len(names) + "|"
    yield from ("| " + " | ".join(_cell(cell) for cell in row) + " |" for row in rows)
    yield ""


def _cell(text: str) -> str:
    return " ".join(str(text).split()).replace("|", "\\|")


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.1f}%"


def _size(number: float | None) -> str:
    return "" if not number else f"{number / GIB:.3g} GiB"
