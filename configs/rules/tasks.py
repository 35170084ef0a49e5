"""The retrieval tasks by name, what each needs of a config, and which of them a config trains on.

The tasks themselves are in `data/retrieval/`; the names are here, because a config is checked before data is loaded.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from ml_collections import ConfigDict

from configs.errors import ConfigError
from configs.schema.allowed import Allowed

# Written in words, through the run's tokenizer.
IN_TEXT = (
    "passkey",
    "niah_single_1",
    "niah_single_2",
    "niah_single_3",
    "niah_multikey_1",
    "niah_multikey_2",
    "niah_multikey_3",
    "niah_multivalue",
    "niah_multiquery",
    "variable_tracking",
)
# Made of bare tokens, 0 .. vocabulary - 1, whatever they mean to a tokenizer.
IN_TOKENS = ("mqar_gaps", "induction_repeat", "induction_complete", "selective_copy")
TASKS = IN_TEXT + IN_TOKENS
SYNTHETIC = ("mqar", *TASKS)  # every source beside the text
# Those that may hold any number of pairs, needles, hops or tokens; all others hold one.
COUNTED = (
    *("mqar", "mqar_gaps", "induction_repeat", "selective_copy"),
    *("niah_multikey_1", "niah_multivalue", "niah_multiquery", "variable_tracking"),
)

HAYSTACKS = ("noise", "text", "distractors")
FILLERS = ("questions", "gaps", "text")  # between pairs and the questions that count, beyond the training length
FILLED = ("mqar", "mqar_gaps")  # tasks that have it; the others lie in a haystack
# The haystack a task has by definition; RULER's essays are the run's own text here.
OWN_HAYSTACK = {
    "passkey": "noise",
    "niah_single_1": "noise",
    "niah_multikey_2": "distractors",
    "niah_multikey_3": "distractors",
    "variable_tracking": "noise",
}

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
    """Returns what a text task's needles lie in: noise, text or distractors; `own` is the task's own."""
    return OWN_HAYSTACK.get(name, "text") if expected == "own" else expected


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
    if name in ("mqar", "mqar_gaps"):
        return config.data.mqar.vocab_size
    return config.data.retrieval.vocab_size if name in IN_TOKENS else 0


def needed(name: str, needles: int, pairs: int) -> int:
    """Returns the tokens that a row of bare tokens has at least, its last target included."""
    return {
        "mqar_gaps": 4 * pairs,  # pairs, then their questions and answers
        "induction_repeat": 2 * (needles + 1),
        "induction_complete": 4,
        "selective_copy": 2 * needles + 1,  # a mark between what is told and what is asked
    }[name]


def vocabulary_needed(name: str, needles: int, pairs: int) -> int:
    """Returns the tokens of vocabulary that a source of bare tokens needs at least."""
    return {
        "mqar_gaps": 2 * pairs + 2,  # the blank is among the keys' half
        "induction_repeat": needles + 2,  # one token is left for filler
        "induction_complete": 4,
        "selective_copy": 2 + 4,  # a blank and a mark
    }[name]


def asking_problems(config: ConfigDict) -> list[str]:
    """Returns what is wrong with the numbers of needles that an evaluation asks for."""
    name, result = asked(config), []
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
            least, size = 2 * number, "data.mqar.vocab_size"
        elif name in IN_TOKENS:
            least = vocabulary_needed(name, number, number)
            size = "data.mqar.vocab_size" if name == "mqar_gaps" else "data.retrieval.vocab_size"
        else:
            continue
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
    for name in (task for task in IN_TOKENS if weights[task] > 0):
        if name == "mqar_gaps":
            field, value, size = ("pairs" if "pairs" in stage else "mqar.pairs"), pairs, "data.mqar.vocab_size"
        else:
            field, size = ("needles" if "needles" in stage else "retrieval.needles"), "data.retrieval.vocab_size"
            value = needles
        message = f"{where}.{field} = {value}" if field in stage else f"data.{field} = {value}"
        if needed(name, needles, pairs) > length + 1:
            result.append(
                f"{message}: {name} then takes a length of {needed(name, needles, pairs) - 1} or more, "
                f"and {where}.length is {length}"
            )
        elif bare_vocabulary(config, name) < (least := vocabulary_needed(name, needles, pairs)):
            result.append(f"{message}: {name} then takes {size} = {least} or more, not {bare_vocabulary(config, name)}")
    if weights["passkey"] > 0 and data.retrieval.haystack == "distractors":
        result.append("data.retrieval.haystack = 'distractors': passkey has none; choose own, noise or text")
    return result
