"""Needles in a haystack as RULER defines them (2404.06654, appendix B): eight kinds in one file.

A needle reads `One of the special magic numbers for quick-lemon is: 1234567.`; the question names a key and asks for
all its values. Keys and values are two words, seven digits or a UUID. Differences from RULER: needles are inserted
between tokens, not between sentences, so that depths are exact; the essays are the run's own text; rows are filled
exactly, not up to a budget below the length; words come from two lists of five-letter words.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from string import ascii_lowercase

from data.retrieval.draws import Dice
from data.retrieval.in_text import Needle, Sample, TextTask, letters, number
from data.retrieval.rows import Task
from data.retrieval.setting import Setting

# All of five letters, so that no key is part of another and keys have equal numbers of bytes.
ADJECTIVES = (
    "acute adult agile alert alien alive ample angry avian aware basic bland blank blunt boney brave brief brisk "
    "broad brown bumpy burnt cheap civic clean clear close comfy corny crazy crisp curly daily dandy dense dingy "
    "dirty dizzy drawn dusty eager early empty equal exact faint fancy fiery first fixed flaky fleet fluid foggy "
    "frank fresh funny fuzzy gaudy giant godly grand great green hairy handy happy hasty heavy humid husky ideal "
    "inner itchy jolly juicy jumpy lanky large leafy leaky legal light livid local lofty loose lower loyal lucky "
    "lunar lyric magic major mauve merry messy metal milky minor misty moist moody moral mossy muddy naive nasal "
    "naval needy nerdy nifty noble noisy novel nutty oaken olive organ other outer pasty perky pesky petty phony "
    "piney plain plump polar pricy prime prone proud pulpy pushy quick quiet rapid ready regal rigid roomy rough "
    "round rowdy royal rural rusty salty sandy saucy savvy scary seedy shady shaky sharp shiny short showy silky "
    "silly sixth sleek slimy small smart smoky snowy soapy sober soggy solar solid sorry sound south spare spicy "
    "stale stark steep stern stiff still stout sunny sweet swift tangy tardy tasty tepid thick third tidal tight "
    "timid tired tough trite ultra upper urban usual utter vague valid vital vivid vocal wacky water weary weird "
    "white whole windy wispy witty woody wooly wordy worth wrong young zesty"
)
NOUNS = (
    "acorn album alley amber angel ankle apple apron arrow bacon badge baker baton beach beard bench beret berry "
    "birch bison blade bloom board booth bread brick broom brush cabin camel candy canoe cargo chain chair chalk "
    "chess chest cider claws cliff clock cloud clown coast cocoa comet coral couch crane creek crest crown daisy "
    "diary disco dough draft drain dress drill eagle easel elbow fairy fence ferry fiber field flame flask flour "
    "flute forge forum frost fruit giant glass globe glove goose grain grape grass gravy groom guard guide heart "
    "hedge honey horse hotel hound house igloo inbox ivory jeans jelly jewel joker judge juice kayak knife koala "
    "label ladle laser ledge lemon lever lilac linen llama lodge lotus mango manor maple march medal melon metal "
    "motel mound mouse movie niche niece night oasis ocean olive onion opera orbit organ otter ounce oxide panda "
    "paper party pasta patio peach pearl pedal penny phone photo piano pilot pizza plane plant plate poets pouch "
    "prism puppy queen quilt radio ranch ratio raven razor ridge river robot rover ruler salad satin scale scarf "
    "scout sedan shack shark shawl sheep shelf shell shore siren skirt slate slope snack snail snake spark spear "
    "spice spoon squid stage stair stamp steak steam stone stork storm stove strap straw sugar swamp syrup table "
    "tango tenor thorn tiger toast topic torch tower trail train trout truck trunk tulip tutor uncle valve vapor "
    "vault venue verse video villa vinyl viola wagon waist waltz whale wheat wheel witch world wrist yacht zebra"
)


WORDS = tuple(f"{adjective}-{noun}" for adjective, noun in product(ADJECTIVES.split(), NOUNS.split()))


@dataclass(frozen=True)
class Kind:
    """The types of keys and values, and of what a row has several: keys, values, queries or nothing."""

    keys: str
    values: str
    several: str = ""


KINDS = {
    "niah_single_1": Kind("words", "numbers"),
    "niah_single_2": Kind("words", "numbers"),
    "niah_single_3": Kind("words", "uuids"),
    "niah_multikey_1": Kind("words", "numbers", "keys"),
    "niah_multikey_2": Kind("words", "numbers"),
    "niah_multikey_3": Kind("uuids", "uuids"),
    "niah_multivalue": Kind("words", "numbers", "values"),
    "niah_multiquery": Kind("words", "numbers", "queries"),
}


@dataclass(frozen=True)
class Niah(TextTask):
    """One of RULER's eight kinds; the short form is `#ab=12;`, asked for by `#ab=`, with keys of letters, not words."""

    kind: str = "niah_single_1"
    digits: int = 7
    letters: int = 2

    @property
    def name(self) -> str:
        """The task's name."""
        return self.kind

    def most(self) -> int | None:
        """One needle, unless the kind has several of something; distractors do not count as needles."""
        return None if KINDS[self.kind].several else 1

    def chance(self, needles: int | None = None) -> float:
        """See `rows.Task`."""
        return 2.0**-122 if KINDS[self.kind].values == "uuids" else 1 / (9 * 10 ** (self.digits - 1))

    def alphabet(self) -> tuple[str, ...]:
        """See `TextTask`."""
        kind, digits = KINDS[self.kind], "0123456789"
        words = ascii_lowercase if self.short else f"{ascii_lowercase}-"
        held = {kind.keys, kind.values}
        return tuple({"words": words, "numbers": digits, "uuids": "0123456789abcdef-"}[what] for what in sorted(held))

    def sample(self, dice: Dice, needles: int) -> Sample:
        """See `TextTask`."""
        several = KINDS[self.kind].several
        keys = dice.distinct(self._key, 1 if several == "values" else needles)
        values = dice.distinct(self._value, needles, keys)
        keys = keys * needles if several == "values" else keys
        requested = list(range(needles)) if several in ("values", "queries") else [dice.below(needles)]
        queries = list(dict.fromkeys(keys[needle] for needle in requested))
        space = "" if self.short else " "
        message = tuple(self._needle(key, value) for key, value in zip(keys, values, strict=True))
        return Sample(
            needles=message,
            answers=tuple((space + values[needle], needle) for needle in requested),
            question=self._question(queries, len(requested)),
            facts=tuple(f"{key}={value}" for key, value in zip(keys, values, strict=True)),
            drawn=tuple((string, len(string)) for string in {*keys, *values}),
            unique=tuple(f"#{key}=" for key in keys) if self.short else (*keys, *values),
            introduction="" if self.short else self._introduction(len(requested)),
            between=",",
            as_told=several == "values",
        )

    def distractor(self, dice: Dice, sample: Sample) -> Needle:
        """See `TextTask`: another key with another value."""
        taken = [string for string, _ in sample.drawn]
        (key,) = dice.distinct(self._key, 1, taken)
        (value,) = dice.distinct(self._value, 1, [*taken, key])
        return self._needle(key, value)

    def _needle(self, key: str, value: str) -> Needle:
        if self.short:
            return "#", key, "=", value, ";"
        return f" One of the special magic {KINDS[self.kind].values} for", f" {key}", " is:", f" {value}", "."

    def _introduction(self, answers: int) -> str:
        kind = KINDS[self.kind].values
        begin = f"Some special magic {kind} are" if answers > 1 else f"A special magic {kind[:-1]} is"
        about = kind if answers > 1 else kind[:-1]
        return (
            f"{begin} hidden within the following text. Make sure to memorize it. I will quiz you about the {about} "
            "afterwards.\n"
        )

    def _question(self, queries: Sequence[str], answers: int) -> Needle:
        if self.short:
            return "#", *[piece for query in queries for piece in (query, ",")][:-1], "="
        kind = KINDS[self.kind].values
        what, verb = (f"{kind}", "are") if answers > 1 else (kind[:-1], "is")
        named = tuple(piece for query in queries[:-1] for piece in (f" {query}", ","))
        named += (" and",) * (len(queries) > 1) + (f" {queries[-1]}",)
        first = f"\nWhat {verb}{' all' if answers > 1 else ''} the special magic {what} for"
        again = f" mentioned in the provided text? The special magic {what} for"
        return first, *named, again, *named, f" mentioned in the provided text {verb}"

    def _key(self, dice: Dice) -> str:
        kind = KINDS[self.kind].keys
        if kind == "uuids":
            return uuid(dice)
        return letters(dice, self.letters, ascii_lowercase) if self.short else WORDS[dice.below(len(WORDS))]

    def _value(self, dice: Dice) -> str:
        return uuid(dice) if KINDS[self.kind].values == "uuids" else number(dice, self.digits)


def uuid(dice: Dice) -> str:
    """Returns a random UUID, version 4."""
    bits = (dice.below(2**64) << 64) | dice.below(2**64)
    bits = bits & ~(0xF << 76) | (4 << 76)
    bits = bits & ~(0x3 << 62) | (2 << 62)
    result = f"{bits:032x}"
    return "-".join((result[:8], result[8:12], result[12:16], result[16:20], result[20:]))


def make(setting: Setting) -> Task:
    """Returns the task for a setting."""
    fields = setting.retrieval
    needles = fields.needles if KINDS[setting.name].several else 1
    size = {"digits": fields.digits or 7, "letters": fields.letters}
    return Niah(setting.encode, setting.hay(), needles, setting.short, kind=setting.name, **size)
