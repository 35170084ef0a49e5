"""The retrieval tasks by name, what each needs of a config, and which of them a config trains on.

The tasks themselves are in `data/retrieval/`; the names are here, because a config is checked before data is loaded.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ml_collections import ConfigDict

from configs.errors import ConfigError
from configs.schema.allowed import Allowed

HAYSTACKS = ("noise", "text", "distractors")
FILLERS = ("questions", "gaps", "text")  # between pairs and the questions that count, beyond the training length


@dataclass(frozen=True)
class Declared:
    """What a config must know of a retrieval task. A task is a file of `data/retrieval` and a line of RETRIEVAL.

    Attributes:
        module: of `data/retrieval`, whose `make(setting)` builds the task; `data/retrieval/build.py` calls it.
        haystack: of a task in words: its own by definition. RULER's essays are the run's own text. Empty: the task is
            of bare tokens, 0 .. vocabulary - 1, whatever they mean to a tokenizer, or its rows have none.
        haystacks: those that its needles may lie in.
        words: written through the run's tokenizer.
        counted: may hold any number of pairs, needles, hops or tokens; else it holds one.
        pairs: of key-value pairs: their number and vocabulary are those of `data.mqar`, and beyond the training length
            filler is before the questions. Else `data.retrieval` has them.
        tokens: bare tokens: n to the tokens that a row of n has at least, its last target included.
        vocabulary: bare tokens: n to the tokens of vocabulary that a row of n needs at least.
        numbers: what the number n must be, beside a whole number above 0: (words, test).
        file: the field of `data.retrieval` and `eval.retrieval` with the file that the task is made of.
    """

    module: str
    haystack: str = ""
    haystacks: tuple[str, ...] = HAYSTACKS
    words: bool = False
    counted: bool = False
    pairs: bool = False
    tokens: Callable[[int], int] | None = None
    vocabulary: Callable[[int], int] | None = None
    numbers: tuple[str, Callable[[int], bool]] | None = None
    file: str = ""


def _in_words(module: str, haystack: str = "text", *, counted: bool = False, **more: Any) -> Declared:
    return Declared(module, haystack, words=True, counted=counted, **more)


def _square(number: int) -> bool:
    return math.isqrt(number) ** 2 == number


RETRIEVAL: dict[str, Declared] = {
    "passkey": _in_words("passkey", "noise", haystacks=("noise", "text")),
    "niah_single_1": _in_words("niah", "noise"),
    "niah_single_2": _in_words("niah"),
    "niah_single_3": _in_words("niah"),
    "niah_multikey_1": _in_words("niah", counted=True),
    "niah_multikey_2": _in_words("niah", "distractors"),
    "niah_multikey_3": _in_words("niah", "distractors"),
    "niah_multivalue": _in_words("niah", counted=True),
    "niah_multiquery": _in_words("niah", counted=True),
    "variable_tracking": _in_words("variable_tracking", "noise", counted=True),
    "cwe": Declared("cwe", words=True, counted=True),
    "fwe": Declared("fwe", words=True, counted=True),
    "qa": Declared("qa", words=True, file="questions"),
    # Pairs, then their questions and answers; the blank is among the keys' half.
    "mqar_gaps": Declared(
        "mqar_gaps", counted=True, pairs=True, tokens=lambda n: 4 * n, vocabulary=lambda n: 2 * n + 2
    ),
    "induction_repeat": Declared(
        "induction",
        counted=True,
        tokens=lambda n: 2 * (n + 1),
        vocabulary=lambda n: n + 2,  # one is left for filler
    ),
    "induction_complete": Declared("induction", tokens=lambda n: 4, vocabulary=lambda n: 4),
    # A mark between statements and questions; a blank and a mark.
    "selective_copy": Declared("selective_copy", counted=True, tokens=lambda n: 2 * n + 1, vocabulary=lambda n: 2 + 4),
    # Half of the pairs, rounded up, are stated again with another value.
    "forgetting_mqar": Declared(
        "forgetting_mqar",
        counted=True,
        pairs=True,
        tokens=lambda n: 4 * n + 2 * -(-n // 2),
        vocabulary=lambda n: 2 * (n + -(-n // 2)) + 2,
    ),
    # A grid of first keys times second keys; a third of the vocabulary for each, and for values.
    "compositional_mqar": Declared(
        "compositional_mqar",
        counted=True,
        pairs=True,
        tokens=lambda n: 6 * n,
        vocabulary=lambda n: 3 * max(n, math.isqrt(n) + 1),
        numbers=("a square (1, 4, 9, ...)", _square),
    ),
}
IN_TEXT = tuple(name for name, one in RETRIEVAL.items() if one.words)
IN_HAYSTACK = tuple(name for name, one in RETRIEVAL.items() if one.haystack)  # needles, and not lists of words
IN_TOKENS = tuple(name for name, one in RETRIEVAL.items() if not one.words)
TASKS = IN_TEXT + IN_TOKENS
SYNTHETIC = ("mqar", *TASKS)  # every source beside the text; data/mqar.py makes the rows of mqar
COUNTED = ("mqar", *(name for name, one in RETRIEVAL.items() if one.counted))
IN_FILES = {
    name: one.file for name, one in RETRIEVAL.items() if one.file
}  # task -> field of data.retrieval, and of eval.retrieval
FILLED = ("mqar", *(name for name, one in RETRIEVAL.items() if one.pairs))

# Of the effective length: name -> (accuracy, whether it must be exceeded). PI, arXiv 2306.15595, section 3.3; YaRN,
# arXiv 2309.00071, section 4.3.2; RULER, arXiv 2404.06654, section 4 (Llama-2-7B's at 4K).
THRESHOLDS: dict[str, tuple[float, bool]] = {"pi": (0.2, False), "yarn": (0.8, False), "ruler": (0.856, True)}


# A condition whose local baseline (the model with a window of the training length) is right in more than chance plus
# this share of answers, by the lower end of its interval, does not measure distance.
LOCAL = 0.1
FEW = 50  # independent examples below which cells of a grid cannot be ranked; 10 to 20 trials tell nothing


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0


THRESHOLD = Allowed(
    f"{', '.join(THRESHOLDS)} or a number in (0, 1]",
    lambda text: text in THRESHOLDS or 0 < _number(text) <= 1,
    tuple(THRESHOLDS),
)


def threshold(given: str) -> tuple[float, bool]:
    """Returns (accuracy, whether it must be exceeded) of a name of THRESHOLDS or a number in (0, 1].

    Raises:
        ConfigError: it is neither.
    """
    if wrong := THRESHOLD.problem("eval.retrieval.threshold", given):
        raise ConfigError(wrong)
    return THRESHOLDS.get(given) or (float(given), False)


def haystack(name: str, expected: str) -> str:
    """Returns what a text task's needles lie in: noise, text or distractors, "" for none; `own` is the task's own."""
    own = RETRIEVAL[name].haystack
    return own if expected == "own" or not own else expected


def mixtures(config: ConfigDict) -> Iterable[Mapping[str, float]]:
    """Yields the source weights of the main setting and of every curriculum stage."""
    main = config.data.weights.to_dict()
    yield main
    for stage in config.data.curriculum:
        yield {**main, **stage["weights"]} if "weights" in stage else main


def uses(config: ConfigDict, source: str) -> bool:
    """Tells whether a config trains on a source (text, mqar, a task) at any stage."""
    return any(given[source] > 0 for given in mixtures(config))


def used(config: ConfigDict, names: Iterable[str] = TASKS) -> list[str]:
    """Returns the sources among `names` that a config trains on at any stage."""
    return [name for name in names if uses(config, name)]


def main_task(config: ConfigDict) -> str | None:
    """Returns the synthetic source with the most weight in the main setting, or in the last stage that has one."""
    main, *stages = mixtures(config)
    for given in (main, *reversed(stages)):
        name = max(SYNTHETIC, key=lambda source: given[source])
        if given[name] > 0:
            return name
    return None


def asked(config: ConfigDict) -> str:
    """Returns the task a run is evaluated on: the one set, or the one it trains on, or passkey where it reads text."""
    expected: str = config.eval.retrieval.task
    if expected != "auto":
        return expected
    return "mqar" if uses(config, "mqar") else main_task(config) or "passkey"


def has_tokenizer(config: ConfigDict) -> bool:
    """Tells whether a run reads or writes words, and so has a tokenizer."""
    return uses(config, "text") or bool(used(config, IN_TEXT))


def reads_text(config: ConfigDict) -> bool:
    """Tells whether a run needs the corpus: to train on, as a haystack, or for its characters."""
    if uses(config, "text"):
        return True
    names = used(config, IN_TEXT)
    expected = config.data.retrieval.haystack
    return bool(names) and (config.data.tokenizer == "char" or any(haystack(n, expected) == "text" for n in names))


def vocabulary(config: ConfigDict) -> int:
    """Returns how many tokens the sources of bare tokens need; 0 where a config trains on none."""
    return max((bare_vocabulary(config, name) for name in used(config, ("mqar", *IN_TOKENS))), default=0)


def bare_vocabulary(config: ConfigDict, name: str) -> int:
    """Returns the vocabulary of one source of bare tokens, or 0 for a task in words."""
    if name in FILLED:
        return config.data.mqar.vocab_size
    return config.data.retrieval.vocab_size if name in IN_TOKENS else 0


def file_asked(config: ConfigDict, name: str) -> str:
    """Returns the file that an evaluation's task is made of: its own, or the one that the run trains on."""
    field = IN_FILES[name]
    return str(config.eval.retrieval[field] or config.data.retrieval[field])


def _no_file(config: ConfigDict, name: str, *, asked: bool = False) -> list[str]:
    """Returns what is wrong with the field that names a task's file."""
    if name not in IN_FILES or (file_asked(config, name) if asked else config.data.retrieval[IN_FILES[name]]):
        return []
    where = "eval" if asked else "data"
    return [f"{where}.retrieval.{IN_FILES[name]}: {name} is made of a file, and none is set"]


def asking_problems(config: ConfigDict) -> list[str]:
    """Returns what is wrong with the numbers of needles that an evaluation asks for."""
    name = asked(config)
    result = _no_file(config, name, asked=True)
    filler = config.eval.retrieval.filler
    if filler != "auto" and name not in FILLED:
        result.append(
            f"eval.retrieval.filler = {filler!r}: {name} has none, but eval.retrieval.haystack where it is in words; "
            f"must be auto, or the task one of {', '.join(FILLED)}"
        )
    for number in config.eval.retrieval.needles:
        message = f"eval.retrieval.needles = {config.eval.retrieval.needles}"
        if name not in COUNTED:
            return [
                f"{message}: {name} has no number of needles; must be empty, or the task one of {', '.join(COUNTED)}"
            ]
        if name == "mqar":
            least = 2 * number
        else:
            declared = RETRIEVAL[name]
            if declared.numbers is not None and not declared.numbers[1](number):
                result.append(f"{message}: of {name} must be {declared.numbers[0]}")
                continue
            if declared.vocabulary is None:
                continue
            least = declared.vocabulary(number)
        size = "data.mqar.vocab_size" if name in FILLED else "data.retrieval.vocab_size"
        if bare_vocabulary(config, name) < least:
            result.append(
                f"{message}: {number} of {name} take {size} = {least} or more, not {bare_vocabulary(config, name)}"
            )
    return result


def problems(config: ConfigDict, weights: Mapping[str, Any], stage: Mapping[str, Any], where: str) -> list[str]:
    """Returns what is wrong with the tasks of one stage.

    Args:
        config: whose own fields are sound.
        weights: of the stage's sources, merged with the main setting's.
        stage: the curriculum's entry; {} for the main setting.
        where: how the stage's fields begin in messages, "data" or "data.curriculum[0]".
    """
    data, result = config.data, []
    pairs, needles = stage.get("pairs", data.mqar.pairs), stage.get("needles", data.retrieval.needles)
    length = stage.get("length", data.length)
    for name in (task for task in TASKS if weights[task] > 0):
        declared = RETRIEVAL[name]
        result += _no_file(config, name)
        if declared.haystack and data.retrieval.haystack not in ("own", *declared.haystacks):
            allowed = ", ".join(("own", *declared.haystacks[:-1]))
            result.append(
                f"data.retrieval.haystack = {data.retrieval.haystack!r}: {name} has none; choose {allowed} or "
                f"{declared.haystacks[-1]}"
            )
        if declared.tokens is None or declared.vocabulary is None:
            continue
        if declared.pairs:
            field, value, size = ("pairs" if "pairs" in stage else "mqar.pairs"), pairs, "data.mqar.vocab_size"
        else:
            field, size = ("needles" if "needles" in stage else "retrieval.needles"), "data.retrieval.vocab_size"
            value = needles
        message = f"{where}.{field} = {value}" if field in stage else f"data.{field} = {value}"
        if declared.numbers is not None and not declared.numbers[1](value):
            result.append(f"{message}: of {name} must be {declared.numbers[0]}")
        elif declared.tokens(value) > length + 1:
            result.append(
                f"{message}: {name} then takes a length of {declared.tokens(value) - 1} or more, "
                f"and {where}.length is {length}"
            )
        elif bare_vocabulary(config, name) < (least := declared.vocabulary(value)):
            result.append(f"{message}: {name} then takes {size} = {least} or more, not {bare_vocabulary(config, name)}")
    return result
