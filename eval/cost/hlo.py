"""An optimized HLO module, parsed from text: the part of the model of each instruction, and the bytes it moves."""

import math
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from eval.cost.scopes import UNNAMED, Owner, owner

CONTAINERS = ("while", "conditional", "call")  # their time is that of the instructions inside
NOTHING = ("parameter", "constant", "tuple", "get-tuple-element", "after-all", "iota", "partition-id", "replica-id")
MOVES = ("bitcast", "broadcast", "reshape", "transpose", "copy", "convert", "slice", "dynamic-slice", "concatenate",
         "pad", "reverse", "bitcast-convert")  # fmt: skip
DEPTH = 6  # instructions followed to find the part of a nameless one
BITS = {"pred": 8, "s4": 4, "u4": 4, "s8": 8, "u8": 8, "s16": 16, "u16": 16, "f16": 16, "bf16": 16, "s32": 32,
        "u32": 32, "f32": 32, "s64": 64, "u64": 64, "f64": 64, "c64": 64, "c128": 128}  # fmt: skip
# Former names of instructions that lost theirs, to recognize them in their readers.
PRIMITIVES = {"dot": "dot_general", "reduce": "reduce", "reduce-window": "reduce", "convolution": "conv_general"}

_INSTRUCTION = re.compile(r"^\s+(ROOT )?%?([\w.\-]+) = ")
_COMPUTATION = re.compile(r"^(?:ENTRY )?%?([\w.\-]+) \(.*\) -> .*\{$")
_ARRAY = re.compile(r"\b([a-z]+\d*\w*)\[([\d,]*)\]")


@dataclass
class Instruction:
    """One line of the module."""

    name: str
    opcode: str
    shape: str  # the result's, as XLA writes it
    operands: list[str]
    op_name: str
    calls: str  # the computation of a fusion, else ""
    parameter: int  # the number of a parameter, else -1
    root: bool

    @property
    def elements(self) -> int:
        """Numbers in the result."""
        return sum(math.prod(dims) for _, dims in arrays(self.shape))

    @property
    def nbytes(self) -> int:
        """Bytes of the result."""
        return sum(math.prod(dims) * bits(dtype) // 8 for dtype, dims in arrays(self.shape))


@dataclass
class Computation:
    """Instructions by name, and the readers of each."""

    instructions: dict[str, Instruction] = field(default_factory=dict)
    users: dict[str, list[str]] = field(default_factory=dict)

    @property
    def root(self) -> Instruction:
        """The result."""
        return next(instruction for instruction in self.instructions.values() if instruction.root)


def arrays(shape: str) -> list[tuple[str, tuple[int, ...]]]:
    """Returns [(dtype, dims)] of a shape or tuple of shapes."""
    return [(dtype, tuple(int(n) for n in dims.split(",") if n)) for dtype, dims in _ARRAY.findall(shape)]


def bits(dtype: str) -> int:
    """Returns the bits of one number; float8 types have 8."""
    return BITS.get(dtype, 8 if dtype.startswith("f8") else 0)


def _closed(text: str, start: int) -> int:
    """Returns the index after the bracket that closes the one at `start`."""
    depth = 0
    for place in range(start, len(text)):
        depth += (text[place] == "(") - (text[place] == ")")
        if depth == 0:
            return place + 1
    return len(text)


def _instruction(line: str) -> Instruction | None:
    result = _INSTRUCTION.match(line)
    if not result:
        return None
    rest = line[result.end() :]
    end = _closed(rest, 0) if rest.startswith("(") else rest.find(" ")
    shape, rest = rest[:end], rest[end:].strip()
    opening = rest.find("(")
    if opening < 0:
        return None
    closing = _closed(rest, opening)
    opcode, inside, after = rest[:opening], rest[opening + 1 : closing - 1], rest[closing:]
    name = re.search(r'op_name="((?:[^"\\]|\\.)*)"', after)
    called = re.search(r"\bcalls=%?([\w.\-]+)", after)
    return Instruction(
        name=result[2],
        opcode=opcode,
        shape=shape,
        operands=re.findall(r"%([\w.\-]+)", inside),
        op_name=name[1].replace("\\'", "'") if name else "",
        calls=called[1] if called and opcode == "fusion" else "",
        parameter=int(inside) if opcode == "parameter" else -1,
        root=bool(result[1]),
    )


class Module:
    """A module from `compiled.as_text()`.

    Args:
        text: the optimized HLO.
        decoding: see `scopes.owner`.
    """

    def __init__(self, text: str, *, decoding: bool = False) -> None:
        named = re.match(r"HloModule ([\w.\-]+)", text)
        self.name = named[1] if named else ""
        self.decoding = decoding
        self.computations: dict[str, Computation] = {}
        self.place: dict[str, str] = {}  # instruction -> computation
        self.main = ""
        current = ""
        for line in text.splitlines():
            if header := _COMPUTATION.match(line):
                current = header[1]
                self.main = current if line.startswith("ENTRY") else self.main
                self.computations[current] = Computation()
            elif (instruction := _instruction(line)) is not None and current:
                computation = self.computations[current]
                computation.instructions[instruction.name] = instruction
                self.place[instruction.name] = current
                for operand in instruction.operands:
                    computation.users.setdefault(operand, []).append(instruction.name)
        self._owners: dict[str, dict[Owner, float]] = {}

    @property
    def entry(self) -> Computation:
        """The computation that the program starts with."""
        return self.computations[self.main]

    def find(self, name: str) -> Instruction | None:
        """Returns an instruction by name."""
        place = self.place.get(name)
        return None if place is None else self.computations[place].instructions[name]

    def owners(self, name: str) -> dict[Owner, float]:
        """Returns the owners of an instruction, with shares that add up to 1.

        A fusion has a single time in the trace. It is divided in proportion to the numbers that its instructions
        compute (matmuls count their multiplications), excluding pure data movement unless there is nothing else.
        """
        if name not in self._owners:
            instruction = self.find(name)
            result = Counter({UNNAMED: 1.0}) if instruction is None else self._weights(instruction)
            total = sum(result.values())
            self._owners[name] = {one: weight / total for one, weight in result.items()}
        return self._owners[name]

    def _weights(self, instruction: Instruction) -> Counter[Owner]:
        product = self._product(instruction)
        if self.decoding and product is not None and not owner(product.op_name) and self._reads_cache(instruction):
            return Counter({Owner("kv_read", "forward"): 1.0})
        if instruction.calls:
            for moving in (False, True):
                result = self._fused(instruction.calls, moving)
                if result:
                    return result
        named = owner(instruction.op_name, decoding=self.decoding) or self._inherited(instruction, DEPTH)
        return Counter({named or UNNAMED: 1.0})

    def _product(self, instruction: Instruction) -> Instruction | None:
        """Returns the matmul that an instruction is, or contains as a fusion."""
        inner = self.computations[instruction.calls].instructions.values() if instruction.calls else [instruction]
        return next((one for one in inner if one.opcode == "dot"), None)

    def _reads_cache(self, product: Instruction) -> bool:
        """Whether a factor of a nameless matmul is the cache, as just written, or dequantized from 8 bits."""
        for name in product.operands:
            operand = self.find(name)
            if operand is None or operand.opcode in NOTHING or operand.elements == 1:
                continue
            if self._product(operand) is None:
                owners = self.owners(name)
                if sum(share for one, share in owners.items() if one.part in ("kv_read", "kv_write")) > 0.5:
                    return True
        return False

    def _fused(self, computation: str, moving: bool) -> Counter[Owner]:
        result: Counter[Owner] = Counter()
        for inner in self.computations[computation].instructions.values():
            if inner.calls:
                result.update(self._fused(inner.calls, moving))
            elif inner.opcode not in NOTHING and (moving or inner.opcode not in MOVES):
                named = owner(inner.op_name, decoding=self.decoding)
                if named is not None:
                    result[named] += max(self._work(inner), 1)
        return result

    def _work(self, instruction: Instruction) -> int:
        """Returns the numbers that an instruction computes; a reduction counts its inputs."""
        if instruction.opcode in ("dot", "reduce", "reduce-window"):
            operands = [operand for name in instruction.operands if (operand := self.find(name)) is not None]
            sizes = [operand.elements for operand in operands] or [1]
            if instruction.opcode == "dot" and len(sizes) == 2:
                return math.isqrt(max(sizes[0] * sizes[1] * instruction.elements, 1))  # batch and sums: B M K N
            return max(sizes)
        return instruction.elements

    def _inherited(self, instruction: Instruction, depth: int) -> Owner | None:
        """Returns the owner of a nameless instruction: that of its readers, else that of its operands."""
        readers = list(self._readers(instruction, depth))
        same = PRIMITIVES.get(instruction.opcode, "?")
        for name in [*(name for name in readers if name.rpartition("/")[2].startswith(same)), *readers]:
            if (result := owner(name, decoding=self.decoding)) is not None:
                return result
        return self._made(instruction, depth)

    def _readers(self, instruction: Instruction, depth: int) -> Iterator[str]:
        """Yields the names of a result's readers, nearest first; into fusions, past nameless ones."""
        computation = self.computations[self.place[instruction.name]]
        for name in computation.users.get(instruction.name, []) if depth else []:
            user = computation.instructions[name]
            if user.calls:
                inner = self.computations[user.calls].instructions.values()
                numbers = {n for n, operand in enumerate(user.operands) if operand == instruction.name}
                parameters = [one for one in inner if one.parameter in numbers]
                for parameter in parameters:
                    yield from self._readers(parameter, depth)
            if user.op_name:
                yield from reversed(user.op_name.split(";"))  # of names that XLA joined, the nearest is last
            elif user.opcode not in CONTAINERS:
                yield from self._readers(user, depth - 1)

    def _made(self, instruction: Instruction, depth: int) -> Owner | None:
        for name in instruction.operands if depth else []:
            operand = self.find(name)
            if operand is None or operand.opcode == "constant":
                continue
            if operand.calls:
                result = next(iter(self._fused(operand.calls, moving=True)), None)
            else:
                result = owner(operand.op_name, decoding=self.decoding) or self._made(operand, depth - 1)
            if result is not None:
                return result
        return None

    def moved(self, name: str) -> int:
        """Returns the bytes that one execution of an instruction reads and writes.

        Of slices and in-place updates only the part counts. Hardware caches are not modeled: what one instruction reads
        twice counts once, and what two instructions pass between them counts in both.
        """
        instruction = self.find(name)
        if instruction is None or instruction.opcode in (*NOTHING, *CONTAINERS, "bitcast"):
            return 0
        operands = [self.find(operand) for operand in dict.fromkeys(instruction.operands)]
        sizes = {one.name: one.nbytes for one in operands if one is not None}
        match instruction.opcode:
            case "dynamic-slice" | "slice" | "gather":
                return 2 * instruction.nbytes
            case "dynamic-update-slice":
                return 2 * sizes.get(instruction.operands[1], 0)
            case "fusion":
                return self._moved_by_fusion(instruction, sizes)
        return instruction.nbytes + sum(sizes.values())

    def _moved_by_fusion(self, fusion: Instruction, sizes: dict[str, int]) -> int:
        inner = self.computations[fusion.calls]
        total, root = 0, inner.root
        while root.opcode == "bitcast" and root.operands[0] in inner.instructions:
            root = inner.instructions[root.operands[0]]
        updates = root.opcode == "dynamic-update-slice"
        total += inner.instructions[root.operands[1]].nbytes if updates else fusion.nbytes
        for parameter in (one for one in inner.instructions.values() if one.parameter >= 0):
            if parameter.parameter >= len(fusion.operands):
                continue
            read = parameter
            users = [inner.instructions[name] for name in inner.users.get(read.name, [])]
            while len(users) == 1 and users[0].opcode == "bitcast" and not users[0].root:
                read = users[0]
                users = [inner.instructions[name] for name in inner.users.get(read.name, [])]
            whole = sizes.get(fusion.operands[parameter.parameter], 0)
            if users and all(user.opcode in ("dynamic-slice", "slice", "gather") for user in users):
                total += min(whole, sum(user.nbytes for user in users))
            elif not (updates and users == [root] and root.operands[0] == read.name):
                total += whole
        return total
