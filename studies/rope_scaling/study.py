"""RoPE scalings: what is compared and with which published figures."""

from studies.spec import ACCURACY, LOCAL, LOSS_AT, TRAINED, Cell, Chart, Ordering, Published, Study

PI, YARN, CONTROLLED = "PI, 2306.15595, table 1", "YaRN, 2309.00071", "2409.12181"
KINDS = (TRAINED, "linear", "ntk", "dynamic", "yarn")
TUNED = ("none", "linear", "ntk", "dynamic", "yarn")
RAW = "raw"
RECALL = (63, 126, 252, 504, 1008)


def _text(
    claim: str, source: str, published: str, theta: str, one: str, other: str, length: int, sign: int
) -> Ordering:
    cell, against = (Cell(theta, LOSS_AT, length, kind) for kind in (one, other))
    return Ordering(f"{claim}, theta {theta.removeprefix('t')}", source, published, cell, against, sign)


def _untuned(theta: str) -> tuple[Ordering, ...]:
    at = "at 4x, untuned"
    rises = Ordering(
        f"Raw RoPE's loss at 4x is above that within its window, theta {theta.removeprefix('t')}", PI,
        "perplexity 7.20 to above 1,000", Cell(theta, LOSS_AT, 1024), Cell(theta, LOSS_AT, 256), 1,
    )  # fmt: skip
    return (
        rises,
        _text(f"PI is better than raw {at}", PI, "16.10 against above 1,000", theta, "linear", TRAINED, 1024, -1),
        _text(f"NTK is better than PI {at}", f"{YARN}, section 3.1", "in words", theta, "ntk", "linear", 1024, -1),
        _text(f"YaRN is better than NTK {at}", f"{YARN}, in kind", "tuned: 3.51 against 3.74", theta, "yarn", "ntk",
              1024, -1),
    )  # fmt: skip


def _tuned(percent: int, claim: str, source: str, published: str, one: str, other: str, length: int, sign: int,
           care: float = 0.01) -> Ordering:  # fmt: skip
    cell, against = (Cell(f"tuned{percent}-{kind}", LOSS_AT, length) for kind in (one, other))
    return Ordering(f"{claim}, {percent}% tuning", source, published, cell, against, sign, care)


def _cliff(kind: str, name: str, published: str) -> Ordering:
    cell, against = (Cell(f"tuned20-{kind}", LOSS_AT, length) for length in (2048, 1024))
    return Ordering(f"{name} has a cliff past its factor, 20% tuning", YARN, published, cell, against, 1)


def _recall(
    claim: str, source: str, published: str, one: Cell, other: Cell, sign: int, control: bool = False
) -> Ordering:
    return Ordering(claim, source, published, one, other, sign, control=control)


def _asked(scaling: str, length: int = 252, arm: str = "recall") -> Cell:
    return Cell(arm, ACCURACY, length, scaling)


STUDY = Study(
    name="rope_scaling",
    title="RoPE scalings past the training length",
    question="Past the training length, what does each RoPE scaling leave of loss and recall: untuned, and after a "
    "little training at four times the length?",
    sweeps=("sweep.py", "recall.py"),
    published=(
        Published(PI, "LLaMA-7B, PG19, sliding, at 2,048/4,096/8,192",
                  "raw 7.20, above 1,000, above 1,000; direct fine-tuning 7.21, 7.34, 7.69; PI 7.13, 6.96, 6.95; PI at "
                  "8,192 after 0/200/1,000 steps 16.10, 7.12, 6.95",
                  "raw explodes, untuned PI degrades, tuned PI holds; \"barely extends\" is of a pass key's window"),
        Published(f"{YARN} (early version)", "Llama 2 7B, 4k to 8k, at 2,048/4,096/6,144/8,192/10,240",
                  "PI 3.92, 3.51, 3.51, 3.34, 8.07; NTK 4.20, 3.75, 3.74, 3.59, 6.24; "
                  "YaRN 3.91, 3.50, 3.51, 3.35, 6.04",
                  "tuned NTK is worse in window; a cliff past the factor"),
        Published(CONTROLLED, "one model, equal tokens; RULER at 32k/64k",
                  "dynamic NTK 59.42, 46.26; PI 57.66, 0; YaRN 36.95, 0",
                  "only dynamic NTK holds past its factor: against YaRN's ranking"),
    ),
    orderings=(
        *_untuned("t10000"),
        *_untuned("t1350"),
        _tuned(1, "PI is better than direct fine-tuning at 4x", PI, "6.95 against 7.69", "linear", "none", 1024, -1),
        _tuned(5, "PI is better than direct fine-tuning at 4x", PI, "6.95 against 7.69", "linear", "none", 1024, -1),
        _tuned(20, "PI is better than direct fine-tuning at 4x", PI, "6.95 against 7.69", "linear", "none", 1024, -1),
        Ordering("Tuning brings PI's loss at 4x down, 5% tuning", PI, "16.10 to 7.12",
                 Cell("tuned5-linear", LOSS_AT, 1024), Cell("t10000", LOSS_AT, 1024, "linear"), -1),
        _tuned(20, "NTK is worse than PI within the window", YARN, "4.20 against 3.92", "ntk", "linear", 256, 1),
        _tuned(20, "NTK is worse than YaRN within the window", YARN, "4.20 against 3.91", "ntk", "yarn", 256, 1),
        _tuned(20, "NTK is worse than YaRN at 4x", YARN, "3.74 against 3.51", "ntk", "yarn", 1024, 1),
        _tuned(20, "PI and YaRN do not differ at 4x", YARN, "3.34, 3.35", "linear", "yarn", 1024, 0),
        _cliff("linear", "PI", "3.34 to 8.07"),
        _cliff("ntk", "NTK", "3.59 to 6.24"),
        _cliff("yarn", "YaRN", "3.35 to 6.04"),
        _tuned(20, "Dynamic NTK is better than YaRN past the factor", CONTROLLED, "RULER 46.26 against 0", "dynamic",
               "yarn", 2048, -1),
        _tuned(20, "Dynamic NTK is better than PI past the factor", CONTROLLED, "RULER 46.26 against 0", "dynamic",
               "linear", 2048, -1),
        _recall("Raw RoPE loses recall at 4x", PI, "7.20 to above 1,000", _asked(TRAINED), _asked(TRAINED, 63), -1),
        _recall("PI recalls more than raw at 4x, untuned", PI, "16.10 against above 1,000", _asked("linear"),
                _asked(TRAINED), 1),
        _recall("NTK recalls more than PI at 4x, untuned", f"{YARN}, section 3.1", "in words", _asked("ntk"),
                _asked("linear"), 1),
        _recall("YaRN recalls more than NTK at 4x, untuned", f"{YARN}, in kind", "tuned: 3.51 against 3.74",
                _asked("yarn"), _asked("ntk"), 1),
        _recall("Direct fine-tuning recalls less at 4x than PI", PI, "pass-key window after 200 steps: 2,560 against "
                "8,192", _asked(TRAINED, 252, "recall-tuned-none"), _asked(TRAINED, 252, "recall-tuned-linear"), -1),
        _recall("a model that cannot see so far recalls less at 4x than YaRN", "", "", Cell("recall", LOCAL, 252),
                _asked("yarn"), -1, control=True),
    ),
    charts=(
        *(Chart(f"untuned_{theta}", f"Loss against length, untuned, theta {theta.removeprefix('t')}",
                "Trained at 256 tokens; each scaling with the factor that just reaches the length. Means with 95% "
                "intervals over seeds.", "tokens",
                {RAW if kind == TRAINED else kind: {length: Cell(theta, LOSS_AT, length, kind)
                                                    for length in (256, 512, 1024, 2048)} for kind in KINDS})
          for theta in ("t10000", "t1350")),
        *(Chart(f"tuned_{percent}", f"Loss against length after tuning for {percent}% of the updates",
                "Continued at 1,024 tokens with factor 4 (none: direct fine-tuning). Means with 95% intervals.",
                "tokens", {kind: {length: Cell(f"tuned{percent}-{kind}", LOSS_AT, length)
                                  for length in (256, 1024, 2048)} for kind in TUNED}) for percent in (1, 5, 20)),
        Chart("recall", "Recall against length, untuned",
              "Trained at 63 tokens; each pair asked once, from the row's beginning. Means with 95% intervals.",
              "tokens", {**{RAW if kind == TRAINED else kind: {length: _asked(kind, length)
                                                              for length in RECALL} for kind in KINDS},
                         "local baseline": {length: Cell("recall", LOCAL, length) for length in RECALL[1:]}}),
    ),
    remarks=(
        "No untuned scaling gains anything on text from beyond the window: the same model with attention windows of "
        "256 tokens (`local` below) has a lower loss at 4x and 8x than any of them. What the rows compare is the harm.",
        "PI against raw, untuned: the base model has seen 1.2M tokens. The pilot of 3.3M tokens (one seed; in the "
        "protocol) had PI below raw at 4x and 8x. Raw RoPE's harm grows as a model learns to use its positions, so "
        "the reversal is of a model trained this little, at both thetas, and says nothing against PI's larger ones.",
        "PI against direct fine-tuning is reversed in the loss, after each of three budgets. PI's own claim is of a "
        "pass key's window, of which the row of recall is the counterpart.",
        "Tuned NTK is ahead of PI within the window, where YaRN's paper has it behind. All had the factor 4; factors "
        "were not tuned for each method.",
        "Past the factor dynamic NTK is ahead of PI and YaRN, as in 2409.12181 and against YaRN's ranking. At 4x the "
        "tuned arms of NTK and dynamic NTK are one function; they part at 8x.",
        "Recall: one seed of five (seed 4) had not learned the task in its 300 updates: it is right in 11% within "
        "the window, the others in 99%. That leaves every interval too wide. The protocol has no rule to "
        "leave it out, so it stays in, and nothing of recall is resolved. The local baseline is at chance everywhere.",
    ),
    checks={
        "PI is better than raw at 4x, untuned": "Five seeds, two thetas, pairing by seed, Holm's correction over all "
        "rows at the level of a second look; the same sign at 2x, 4x and 8x. The base has seen 1.2M tokens; a pilot of "
        "3.3M (one seed) had PI below raw at 4x and 8x, so that the sign is of models trained this little.",
        "PI is better than direct fine-tuning at 4x": "Three budgets of tuning (1%, 5%: three seeds; 20%: five), one "
        "base a seed for both arms, equal updates and rates, loss at 4x on the same tokens. PI's own claim is of a "
        "pass key's window; its counterpart in recall is not resolved. Not done: factors and rates tuned for each arm.",
        "NTK is worse than PI within the window": "Five seeds, one base a seed for both arms, the same sign after 5% "
        "and 1% of tuning, Holm's correction over all rows at the level of a second look. Not done: a factor tuned for "
        "each method; both have 4.",
    },
    not_run={
        "factors tuned for each method (2, 8 and 16 beside 4; four methods, 20% of tuning, three seeds)": 0.5,
        "pass keys in words (the recipe of configs/passkey.py, five seeds, untuned and tuned)": 0.6,
        "tuning at theta 1,350 (all budgets)": 0.6,
        "seeds 3 and 4 at 1% and 5% of tuning": 0.2,
        "the pilot's 800 updates of 16 rows in place of 600 of 8, five seeds, both thetas, tuned at 20%": 1.6,
    },
    columns={"parameters": "parameters"},
)  # fmt: skip
