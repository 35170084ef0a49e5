"""Recall by width, pairs and length: what is compared and with which published figures."""

from studies.spec import ACCURACY, Cell, Chart, Ordering, Published, Study

ZOOLOGY = "Zoology, 2312.04927, figure 2"
SETTINGS = {64: 4, 128: 8, 256: 16}


def _cell(width: int, length: int) -> Cell:
    return Cell(f"d{width}-t{length}-p{SETTINGS[length]}", ACCURACY, length)


STUDY = Study(
    name="recall",
    title="Recall by width, pairs and length",
    question="Does attention solve multi-query recall at every width, and must its width grow with pairs and length?",
    sweeps=("sweep.py",),
    published=(
        Published(ZOOLOGY, "MQAR, vocabulary 8,192, (length, pairs) (64, 4), (128, 8), (256, 16)",
                  "attention at accuracy 1 for every width of 64 to 512", "attention solves every width"),
        Published("2508.19029", "the same task", "in words", "much of the gap between models is the learning rate"),
    ),
    orderings=(
        *(Ordering(f"Width 64 recalls {pairs} pairs in {length} tokens as width 256 does", ZOOLOGY, "both 1",
                   _cell(64, length), _cell(256, length), 0, 0.05, 0.5) for length, pairs in SETTINGS.items()),
        Ordering("At width 32 recall does not fall from 4 pairs to 16", f"{ZOOLOGY}, in kind", "no fall at 64 and more",
                 _cell(32, 256), _cell(32, 64), 0, 0.05, 0.5),
    ),
    charts=(
        Chart("widths", "Recall against width", "Means with 95% intervals over seeds.", "width",
              {f"{pairs} pairs in {length}": {width: _cell(width, length) for width in (32, 64, 128, 256)}
               for length, pairs in SETTINGS.items()}),
    ),
    hours="It needs some 400 hours of one core here, reckoned from FLOPs, or an afternoon on one GPU; no part of it "
    "that fits into an hour learns anything (two pilots, in the protocol).",
    not_run={
        f"width {width}, all three settings (4 rates, 3 seeds, 4,000 updates; reckoned from FLOPs)": hours
        for width, hours in {32: 30, 64: 63, 128: 115, 256: 240}.items()
    },
    columns={"parameters": "parameters"},
)  # fmt: skip
