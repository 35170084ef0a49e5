"""Head counts at a fixed width: what is compared and with which published figures."""

from studies.spec import Cell, Chart, Ordering, Published, Study

VASWANI = "Vaswani et al. 2017, table 3A"
BHOJANAPALLI = "Bhojanapalli et al. 2020"
HEADS = (1, 2, 4, 8, 16)
RUNGS = {300: "@amount=300", 600: ""}


def _against_8(claim: str, source: str, published: str, heads: int, sign: int, rung: str = "") -> Ordering:
    return Ordering(claim, source, published, Cell(f"h{heads}{rung}"), Cell(f"h8{rung}"), sign)


def _control(heads: int) -> Ordering:
    claim = f"without positions, {'one head is' if heads == 1 else f'{heads} heads are'} worse than 8"
    return Ordering(claim, "", "", Cell(f"nope-h{heads}"), Cell("nope-h8"), 1, control=True)


STUDY = Study(
    name="heads",
    title="Head counts at a fixed width",
    question="At equal width, parameters, FLOPs and tokens, which number of heads has the lowest validation loss?",
    sweeps=("rates.py", "sweep.py"),
    published=(
        Published(VASWANI, "WMT14 En-De, width 512, heads 1/4/8/16/32", "perplexity 5.29, 5.00, 4.92, 4.91, 5.01",
                  "one head and very thin heads lose to a plateau between"),
        Published("Vaswani et al. 2017, table 3B", "key dim 16/32, base 64", "perplexity 5.16, 5.01, base 4.92",
                  "a small key dim hurts"),
        Published(BHOJANAPALLI, "BERT-large, heads 8/16/32 at a fixed width", "SQuAD F1 90.89, 90.61, 90.45",
                  "no loss at few heads: against Vaswani at that end; a loss at many"),
    ),
    orderings=(
        _against_8("One head is worse than 8", VASWANI, "+0.073 nats", 1, 1),
        _against_8("Two heads are worse than 8", f"{VASWANI}, in kind", "4 of 16: +0.016 nats", 2, 1),
        _against_8("Two heads do not differ from 8", BHOJANAPALLI, "8, 16: F1 90.89, 90.61", 2, 0),
        _against_8("Four heads do not differ from 8 (a plateau)", VASWANI, "8, 16: 0.002 nats apart", 4, 0),
        _against_8("Sixteen heads are worse than 8", f"{VASWANI}; {BHOJANAPALLI}", "+0.018 nats", 16, 1),
        _against_8("One head is worse than 8, at half the updates", VASWANI, "+0.073 nats", 1, 1, RUNGS[300]),
        _against_8("Sixteen heads are worse than 8, at half the updates", VASWANI, "+0.018 nats", 16, 1, RUNGS[300]),
        _control(1),
        _control(16),
    ),
    charts=(
        Chart("heads", "Loss against the number of heads, by updates",
              "600 updates and its ladder, RoPE; the same without positions. Means with 95% intervals over seeds.",
              "heads", {
                  **{f"{updates} updates": {heads: Cell(f"h{heads}{rung}") for heads in HEADS}
                     for updates, rung in RUNGS.items()},
                  "600, no positions": {heads: Cell(f"nope-h{heads}") for heads in (1, 8, 16)},
              }),
        Chart("rates", "Loss against the learning rate, by heads",
              "The selection runs: one seed, 300 updates, the selection half of the validation documents.",
              "learning rate", {
                  f"{heads} heads": {rate: Cell(f"h{heads}-lr{rate}") for rate in (0.001, 0.002, 0.004, 0.008)}
                  for heads in HEADS
              }),
    ),
    columns={"parameters": "parameters", "flops_per_token": "FLOPs/token"},
)  # fmt: skip
