"""Counts of a program from its optimized HLO: cycles, collectives, bytes, kernels.

XLA for TPUs estimates the cycles of every instruction except Pallas kernels; `cost_analysis` counts the body of a loop
once. Here each instruction counts as often as its loops run it, and is assigned to the part of the model given by its
named scope (`eval/cost/scopes.py`).
"""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from eval.cost.hlo import Instruction, Module, arrays, bits
from eval.cost.scopes import owner
from models.kernels import KERNELS

COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute", "collective-broadcast",
               "ragged-all-to-all")  # fmt: skip
# Custom calls of attention: Pallas on TPUs; on GPUs cuDNN, and Pallas through Triton or Mosaic.
KERNEL_CALLS = re.compile(
    r'custom_call_target="(tpu_custom_call|__cudnn\$fmha\w*|__gpu\$xla\.gpu\.triton|triton_kernel_call|mosaic_gpu\w*)"'
)

# A TPU splits a collective over its start, the fusions it runs beside, and its end, and repeats it in each.
_CHAIN = re.compile(r'\bchain_id="(\d+)"')
_METADATA = re.compile(r"frontend_attributes=\{kernel_metadata=\{.*?\}\}, ", re.DOTALL)
_BODY = re.compile(r'"custom_call_config":\{"body":"[^"]*"')
_NAMED = re.compile(r"^\s+(?:ROOT )?%?([\w.\-]+) = ")
_ENTRY = re.compile(r"^ENTRY %?([\w.\-]+) ", re.MULTILINE)


@dataclass
class Counts:
    """One execution of a program on one device.

    Attributes:
        cycles: estimated, by part of the model (`scopes.PARTS`); empty if the compiler gives none.
        kernels: attention kernels (KERNEL_CALLS) by name -> executions; their cycles are not estimated.
        collectives: by kind -> (executions, bytes of the results).
        moved: bytes of the operands and results of every instruction outside a fusion.
        loops: factor by which more bytes are read and written than if every loop ran once, as in XLA's own count.
        endless: loops with an unknown trip count; their bodies count once.
    """

    cycles: Counter[str] = field(default_factory=Counter)
    kernels: Counter[str] = field(default_factory=Counter)
    collectives: dict[str, tuple[int, int]] = field(default_factory=dict)
    loops: float = 1.0
    moved: int = 0
    endless: int = 0


def count(text: str) -> Counts:
    """Returns the counts of a program, from `compiled.as_text()`."""
    program = _Program(text)
    counts = Counts()
    chains: set[tuple[str, str]] = set()
    moved = once = 0
    for instruction, line, times in program.run(program.entry, 1, counts):
        if (estimate := re.search(r'"estimated_cycles":"(\d+)"', line)) is not None:
            counts.cycles[program.part(instruction)] += int(estimate[1]) * times
        if instruction.opcode == "custom-call" and (call := KERNEL_CALLS.search(line)) is not None:
            own = call[1] if call[1].startswith("__cudnn") else re.sub(r"\.\d+$", "", instruction.name)
            if own == "pallas_call" and (named := re.search(r'op_name="[^"]*/(\w+)/pallas_call"', line)) is not None:
                own = named[1]  # on a GPU; a TPU's instruction has the kernel's name
            counts.kernels[own] += times
        kind = instruction.opcode.removesuffix("-start")
        if kind in COLLECTIVES and _first(kind, line, chains):
            often, nbytes = counts.collectives.get(kind, (0, 0))
            counts.collectives[kind] = (often + times, nbytes + times * _received(instruction))
        if not program.inside.get(instruction.name):
            nbytes = program.module.moved(instruction.name)
            moved, once = moved + times * nbytes, once + nbytes
    counts.loops, counts.moved = (moved / once if once else 1.0), moved
    return counts


def missing(cores: str, kernels: Counter[str], platform: str) -> list[str]:
    """Returns the attention kernels whose custom call is missing in a compiled program.

    Args:
        cores: the kernels in the traced model, joined by "+".
        kernels: of the compiled program.
        platform: that it was compiled for.
    """
    calls = {core: KERNELS[core].calls for core in cores.split("+") if core}
    needed = {core: starts[platform] for core, starts in calls.items() if platform in starts}
    return [core for core, start in needed.items() if not any(name.startswith(start) for name in kernels)]


def _first(kind: str, line: str, chains: set[tuple[str, str]]) -> bool:
    """Returns whether a collective is the first piece of its chain, and records it."""
    result = _CHAIN.search(line)
    if result is None:
        return True
    known = (kind, result[1]) in chains
    chains.add((kind, result[1]))
    return not known


def _received(collective: Instruction) -> int:
    """Returns the bytes of a collective's result; an asynchronous one has its operand beside it."""
    if not collective.opcode.endswith("-start") or collective.opcode.startswith("all-reduce"):
        return collective.nbytes
    sizes = [_size(dtype, dims) for dtype, dims in arrays(collective.shape)]
    return max(sizes, default=0)


def _size(dtype: str, dims: tuple[int, ...]) -> int:
    total = bits(dtype) // 8
    for dim in dims:
        total *= dim
    return total


class _Program:
    """A module with what `Module` leaves out: the lines themselves, which contain the calls."""

    def __init__(self, text: str) -> None:
        text = _BODY.sub('"custom_call_config":{"body":""', _METADATA.sub("", text))
        self.module = Module(text)
        self.lines = {result[1]: line for line in text.splitlines() if (result := _NAMED.match(line))}
        entry = _ENTRY.search(text)
        self.entry = entry[1] if entry else ""
        self.inside: dict[str, bool] = {}  # instructions of fusions: their bytes never reach memory

    def part(self, instruction: Instruction) -> str:
        """Returns the part of an instruction. A fusion on a TPU has the name of its main instruction."""
        named = owner(instruction.op_name)
        if named is not None:
            return named.part
        shares = self.module.owners(instruction.name)
        return max(shares, key=lambda one: shares[one]).part

    def run(self, name: str, times: int, counts: Counts, fused: bool = False) -> Iterator[tuple[Instruction, str, int]]:
        """Yields (instruction, its line, executions), including those of called computations."""
        computation = self.module.computations.get(name)
        for instruction in computation.instructions.values() if computation else ():
            line = self.lines[instruction.name]
            self.inside[instruction.name] = fused
            yield instruction, line, times
            match instruction.opcode:
                case "while":
                    turns = self._turns(line)
                    counts.endless += turns is None
                    yield from self.run(_called(line, "body"), times * (turns or 1), counts, fused)
                case "conditional":
                    branches = [list(self.run(branch, times, counts, fused)) for branch in _branches(line)]
                    yield from max(branches, key=len, default=[])
                case "call":
                    yield from self.run(_called(line, "to_apply"), times, counts, fused)
                case "fusion" | "async-start":
                    yield from self.run(_called(line, "calls"), times, counts, fused=True)

    def _turns(self, line: str) -> int | None:
        """Returns a loop's trip count: from XLA's annotation, or counting from 0 to the constant in its condition."""
        if (known := re.search(r'"known_trip_count":\{"n":"(\d+)"', line)) is not None:
            return int(known[1])
        condition = self.module.computations.get(_called(line, "condition"))
        if condition is None:
            return None
        root = condition.root
        ends = [self._constant(operand) for operand in root.operands]
        less = re.search(r"direction=(LT|GT)", self.lines[root.name])
        if root.opcode != "compare" or less is None:
            return None
        return next((end for end in ends if end is not None), None)

    def _constant(self, name: str) -> int | None:
        result = re.search(r" constant\((\d+)\)", self.lines.get(name, ""))
        return int(result[1]) if result else None


def _called(line: str, role: str) -> str:
    result = re.search(rf"\b{role}=%?([\w.\-]+)", line)
    return result[1] if result else ""


def _branches(line: str) -> list[str]:
    if (result := re.search(r"branch_computations=\{([^}]*)\}", line)) is not None:
        return [name.strip().lstrip("%") for name in result[1].split(",")]
    return [name for name in (_called(line, "true_computation"), _called(line, "false_computation")) if name]
