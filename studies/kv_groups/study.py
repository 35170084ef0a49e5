"""Key/value groups at equal parameters: what is compared and with which published figures."""

from studies.spec import Cell, Chart, Ordering, Published, Study

SHAZEER, AINSLIE, DEEPSEEK = "Shazeer 2019, table 3", "Ainslie et al. 2023", "DeepSeek-V2, table 8"
ARMS = ("mha", "gqa2", "mqa", "h1k16", "h2k8", "h4k4")


def _order(claim: str, source: str, published: str, one: str, other: str, sign: int) -> Ordering:
    return Ordering(claim, source, published, Cell(one), Cell(other), sign)


STUDY = Study(
    name="kv_groups",
    title="Key/value groups at equal parameters",
    question="At equal parameters, what do fewer key/value heads cost in loss, and what do MHA's fewer or "
    "thinner heads cost that have the same cache?",
    sweeps=("rates.py", "sweep.py", "decode.py"),
    published=(
        Published(SHAZEER, "Billion Word, decoder only, parameters matched by d_ff",
                  "dev perplexity MHA 29.9; MQA 30.2; h=1 31.2; h=2 31.1; h=4 31.0; h=8 30.9",
                  "MQA loses far less than fewer or thinner heads of the same cache"),
        Published("Shazeer 2019, table 1", "WMT14, parameters matched by d_ff",
                  "ln perplexity MHA 1.424; MQA 1.439; (1, 128) 1.518, (2, 64) 1.480, (4, 32) 1.488, (8, 16) 1.513",
                  "the same"),
        Published(AINSLIE, "T5, 5% uptraining", "MHA-XXL 47.2 at 1.51 s; GQA-8 47.1 at 0.28; MQA 46.6 at 0.24",
                  "GQA near MHA in quality, near MQA in time"),
        Published(DEEPSEEK, "7B, MQA/GQA-8/MHA", "MMLU 37.9, 41.2, 45.2", "far larger gaps: the field disagrees"),
    ),
    orderings=(
        _order("MQA is worse than MHA", SHAZEER, "+0.010 nats", "mqa", "mha", 1),
        _order("GQA of 2 groups does not differ from MHA", AINSLIE, "47.1 against 47.2", "gqa2", "mha", 0),
        _order("GQA of 2 groups is worse than MHA", DEEPSEEK, "MMLU 41.2 against 45.2", "gqa2", "mha", 1),
        _order("MQA is worse than GQA of 2 groups", f"{AINSLIE}; {DEEPSEEK}", "46.6 against 47.1; 37.9 against 41.2",
               "mqa", "gqa2", 1),
        _order("One head of the same cache is worse than MQA", SHAZEER, "+0.033 nats", "h1k16", "mqa", 1),
        _order("Two heads of the same cache are worse than MQA", SHAZEER, "+0.029 nats", "h2k8", "mqa", 1),
        _order("Four thin heads of the same cache are worse than MQA", SHAZEER, "+0.026 nats", "h4k4", "mqa", 1),
    ),
    charts=(
        Chart("rates", "Loss against the learning rate",
              "The selection runs: one seed, 200 updates, the selection half of the validation documents.",
              "learning rate", {arm: {rate: Cell(f"{arm}-lr{rate:g}") for rate in (0.002, 0.004)}
                                for arm in ARMS}),
    ),
    remarks=(
        "Seeds scatter two to four times as much as was reckoned from the pilot of head counts, so that three of them "
        "resolve little of what is published; each row that is not resolved says below which difference it would see.",
        "Rates: the better of two for each arm, for most the lower one, so that a lower rate than tried may be better "
        "for an arm; in the study of head counts half of it was far worse for heads of 8 to 32 dims.",
        "Decode: 64 rows, a prompt of 256 tokens (`decode-` arms: shapes as above, untrained, since speed does not "
        "depend on the weights). What can be held against the loss are the bytes that a step reads, parameters and "
        "cache; the cache's part is, to the byte, what the compiled program allocates (`eval.memory`; MHA 35,651,584, "
        "MQA 4,456,448). Tokens a second are of a machine under load: not ranked.",
    ),
    not_run={
        "0.010 nats between MQA and MHA, at the scatter of seeds found here (some 380 seeds of both)": 10,
        "17 more seeds of every arm, which would show some 0.04 nats": 1.4,
        "contexts of 1,024 tokens, three seeds": 1.2,
        "width 256, three seeds": 1.5,
        "uptraining GQA and MQA from MHA's checkpoints, as Ainslie et al. did, three seeds": 0.2,
        "decode speed on an idle machine, six arms": 0.1,
    },
    hours="It needs about 0.3 hours of one core here, reckoned from the study of head counts.",
    columns={
        "kv_bytes_per_token": "KV bytes/token", "parameters": "parameters",
        "decode_bytes_per_step": "bytes a decode step", "decode_tokens_per_second": "decode tokens/s (under load)",
    },
)  # fmt: skip
