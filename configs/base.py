"""The schema: every field of an experiment, declared once.

A preset is a file with `get_config()` that calls this one and changes a few fields; the command line changes more
(`--config.model.num_heads=8`). `python -m configs.fields` prints the table.

    field(default, meaning, what is allowed, ...)      the type is the default's
    unset(type, meaning, what is allowed, resolve=f)   unset by default; config.json holds the value of f(config)

Further declarations are `resume=True` (a resumed run may change it), `program=ARGUMENT` or `NONE` (compiled programs do
not depend on it; undeclared, the field is static: another value is another program), `pack=True` (runs that train in
one program may differ in it) and, of fields of data and eval, `compare=` (the evaluations whose numbers it shapes;
undeclared, it shapes all: results that differ in it are not compared). A group may declare them for all of its fields.
Rules over several fields are functions in `configs/rules`.
"""

import math

from ml_collections import ConfigDict

from configs.evaluations import of_kind
from configs.rules import attention, data, kernels, mesh, mlp, optimizer, positions, sources, tasks
from configs.schema import (
    ARGUMENT,
    NONE,
    STATIC,
    Schema,
    above,
    at_least,
    choice,
    each,
    field,
    group,
    interval,
    rule,
    unset,
)

_POSITIVE, _NOT_NEGATIVE = above(0), at_least(0)
# Every table of layers or heads grows with them; the deepest published networks have a thousand layers.
MOST_LAYERS, MOST_HEADS = 10_000, attention.MOST_HEADS
_LAYERS = rule(f"above 0 and at most {MOST_LAYERS}", lambda value: 0 < value <= MOST_LAYERS)
_HEADS = rule(f"above 0 and at most {MOST_HEADS}", lambda value: 0 < value <= MOST_HEADS)
_COUNTS = each("whole numbers above 0", int, lambda item: item > 0)
# Of `compare`: the evaluations whose numbers a field shapes.
_NOTHING: tuple[str, ...] = ()
_QUALITY, _COST = of_kind("quality"), of_kind("cost")

_MLA = group(  # attention.kind = mla; the unset sizes resolve to DeepSeek-V2's proportions
    kv_rank=unset(int, "of the latent that keys and values come from; unset: 4 head_dim", _POSITIVE,
                  resolve=attention.latent_dim("kv_rank")),
    query_rank=unset(int, "of the queries' latent; unset: queries come from the input", _POSITIVE),
    nope_dim=unset(int, "of queries and keys, each head's own, not rotated; unset: head_dim", _POSITIVE,
                   resolve=attention.latent_dim("nope_dim")),
    rope_dim=unset(int, "of queries and of the key all heads share; unset: head_dim / 2", _POSITIVE,
                   resolve=attention.latent_dim("rope_dim")),
    value_dim=unset(int, "of values; unset: head_dim", _POSITIVE, resolve=attention.latent_dim("value_dim")),
)  # fmt: skip

_ATTENTION = group(
    kind=field("gqa", "gqa (num_kv_heads heads, so MHA and MQA too), mla (multi-head latent, 2405.04434) or "
               "differential (pairs of heads, one map less the other, 2410.05258)",
               choice("gqa", "mla", "differential")),
    mla=_MLA,
    qkv=field("split", "split (three matrices) or fused (one of width (H + 2 G) K)", choice("split", "fused")),
    qkv_bias=field(False, "biases on queries, keys and values"),
    out_bias=field(False, "a bias on the output projection"),
    kernel=field("auto", kernels.MEANING, choice("auto", *kernels.KERNELS)),
    window=unset(int, "keys seen by each query, itself included; unset: all before it", _POSITIVE),
    window_pattern=field((), "windows by layer, repeated, 0 = no window, e.g. (64, 64, 0); empty: `window`",
                         each("whole numbers, 0 (none) or more", int, lambda item: item >= 0)),
    window_stages=field((), "a window that grows in training: dict(steps=, window=), ... before the model's own "
                        "windows; no query sees more in that stage"),
    pattern=field((), "heads by layer, repeated: dict(num_heads=, num_kv_heads=, head_dim=, theta=); what an item "
                  "leaves out is the model's; empty: all layers the same"),
    qk_norm=field(False, "RMSNorm over head_dim of queries and keys, before rotation"),
    soft_cap=unset(float, "scores become cap * tanh(scores / cap); unset: none", _POSITIVE),
    sinks=field(False, "a learned score in each head's softmax, of a key with value 0 (gpt-oss)"),
    scale_rule=field("auto", "of q.k: sqrt (1/sqrt(head_dim)), mup (1/head_dim, arXiv 2203.03466), or auto; "
                     "head_dim is that of queries, nope_dim + rope_dim for mla", choice("auto", "sqrt", "mup")),
    scale=unset(float, "a number that multiplies q.k; scale_rule = auto: this where set, else sqrt", _POSITIVE),
    gate=group(  # models/switches/gate.py
        kind=field("none", "a sigmoid gate on heads' outputs (2505.06708): none, head (a number a head) or element",
                   choice("none", "head", "element")),
        dims=unset(int, "of the layer's input, the first ones, which the gate reads; unset: width", _POSITIVE,
                   resolve=attention.gate_dims),
    ),
    weights=group(  # models/switches/weighting.py
        kind=field("softmax", "of scores: softmax, sigmoid (2409.04431), top_k (softmax of the largest, 2106.06899) or "
                   "selective (earlier tokens can be forgotten, 2410.02703)",
                   choice("softmax", "sigmoid", "top_k", "selective")),
        sigmoid_bias=unset(float, "sigmoid: added to the scores; unset: -ln(data.length)",
                           resolve=attention.sigmoid_bias),
        top_k=unset(int, "top_k: keys that a query keeps in each head, those of the largest scores", _POSITIVE),
    ),
    talking_heads=field(False, "heads mix their scores, and mix their weights (2003.02436)"),
    value_residual=field("none", "mixes the first layer's in (2410.17897): none, fixed (halves) or learned",
                         choice("none", "fixed", "learned")),
    value_embedding=field("none", "mixes in values that tokens look up (modded-nanogpt): none, shared (one table) "
                          "or layer (a table each)", choice("none", "shared", "layer")),
    exclusive=field(False, "heads give what is orthogonal to their token's own value (XSA, 2603.09078)"),
    tie_kv=field(False, "K = V: values are the keys before norm and rotation, and the cache holds them once"),
    kv_share=field(1, "consecutive layers that read the keys and values of their first one (CLA, 2405.12981); 1: each "
                   "has its own", _POSITIVE),
    kv_share_from=field(0, "the first layer, from 0, of those that kv_share groups: with kv_share = layers from there "
                        "on, all of them read one layer's (YOCO's second half, 2405.05254)", _NOT_NEGATIVE),
    kv_storage=field("auto", "of the KV cache: auto (the compute dtype), int8 or fp8 (8 bits and a scale)",
                     choice("auto", "int8", "fp8")),
)  # fmt: skip

_ROPE_SCALING = group(
    kind=field("none", "how RoPE is stretched to longer rows", choice(*positions.SCALINGS)),
    factor=field(1.0, "s, the stretch", at_least(1)),
    follow=field("none", "window: in attention.window_stages the factor is the stage's window / original_length",
                 choice("none", "window")),
    original_length=unset(int, "tokens, the length before stretching; unset: data.length", _POSITIVE,
                          resolve=lambda config: config.data.length),
    beta_fast=field(32.0, "yarn, ntk_by_parts: rotations above which a dim keeps its frequency", _POSITIVE),
    beta_slow=field(1.0, "yarn, ntk_by_parts: rotations below which a dim is interpolated by the factor", _POSITIVE),
    truncate=field(True, "yarn: round the ramp's ends outward to whole dims"),
    attention_factor=unset(float, "yarn, longrope: multiplies cos and sin; unset: see the scaling", _POSITIVE),
    mscale=unset(float, "yarn: with mscale_all_dim, the factor is the quotient of the two"),
    mscale_all_dim=unset(float, "yarn: see mscale"),
    low_freq_factor=field(1.0, "llama3: wavelengths above original_length / this are divided by the factor", _POSITIVE),
    high_freq_factor=field(4.0, "llama3: wavelengths below original_length / this are kept"),
    short_factor=field((), "longrope: divides each pair's frequency up to original_length, one number a pair",
                       each("numbers above 0", (int, float), lambda item: item > 0)),
    long_factor=field((), "longrope: the same, for longer sequences",
                      each("numbers above 0", (int, float), lambda item: item > 0)),
)  # fmt: skip

_POSITION = group(
    kind=field("rope", "positional scheme; models/positions has a file for each", choice(*positions.KINDS)),
    pattern=field((), 'kinds by layer, repeated, e.g. ("rope", "rope", "none"); empty: `kind` everywhere',
                  each(positions.KINDS)),
    max_length=unset(int, "rows of the learned table; unset: the longest training length", _POSITIVE,
                     resolve=data.longest),
    rope=group(
        theta=field(10000.0, "base of the wavelengths", _POSITIVE),
        fraction=field(1.0, "share of head_dim that is rotated; p_rope: of its frequencies", interval("(0, 1]")),
        pairing=field("half", "half: dim i with i + r/2; interleaved: dim 2i with 2i + 1",
                      choice("half", "interleaved")),
        scaling=_ROPE_SCALING,
    ),
    xpos=group(base=field(512.0, "positions over which pair i of the scores fades by its zeta_i", _POSITIVE)),
    t5=group(
        buckets=field(32, "rows of the table: half for one distance each, half growing logarithmically",
                      rule("an even number, 2 or more", lambda value: value >= 2 and value % 2 == 0)),
        max_distance=field(128, "distances from here on share the last bucket"),
    ),
    fire=group(
        hidden=field(32, "units of the function's hidden layer", _POSITIVE),
        c=field(0.1, "first value of c in psi(x) = ln(c x + 1)", _POSITIVE),
        threshold=field(512.0, "first value of L, the position from which distances are interpolated", _POSITIVE),
    ),
    cope=group(rows=field(64, "of the table; contextual positions are clipped to the last", _POSITIVE)),
    temperature=group(  # a factor on queries that grows with their position
        kind=field("none", "of the factor on queries", choice("none", *positions.TEMPERATURES)),
        length=unset(int, "L0, tokens, 2 or more unless kind is none; unset: rope.scaling.original_length", _POSITIVE,
                     resolve=lambda config: config.model.position.rope.scaling.original_length),
        beta=field(0.1, "llama4, ministral3: weight of the logarithm", _NOT_NEGATIVE),
        layers=field("auto", "all, nope (without positions), or auto: nope for llama4, else all",
                     choice("auto", "all", "nope")),
    ),
)  # fmt: skip

_MODEL = group(
    vocab_size=unset(int, "tokens; unset: the tokenizer's (and never less than data.mqar.vocab_size)", _POSITIVE,
                     resolve=data.known_vocabulary),
    width=field(256, "D, the residual stream", _POSITIVE),
    num_layers=field(4, "L", _LAYERS),
    num_heads=field(8, "H, query heads", _HEADS),
    head_dim=unset(int, "K, free of width; unset: width // num_heads", _POSITIVE,
                   resolve=lambda config: attention.head_dim(config.model)),
    num_kv_heads=unset(int, "G, key/value heads (KV groups): 1 = MQA; unset: num_heads = MHA", _HEADS,
                       resolve=lambda config: config.model.num_heads),
    mlp=field("swiglu", "swiglu, gelu (tanh form), gelu_exact, relu2 or relu", choice(*mlp.KINDS)),
    mlp_width=unset(int, "F; unset: 8/3 width for swiglu, 4 width otherwise, rounded up to 16", _POSITIVE,
                    resolve=mlp.default_width),
    mlp_bias=field(False, "biases in the MLP"),
    norm=field("rmsnorm", "of every layer's inputs and of the last one's output", choice("rmsnorm", "layernorm")),
    norm_bias=field(False, "a bias in layernorm (rmsnorm has none)"),
    norm_eps=field(1e-6, "added to the variance", _POSITIVE),
    embedding_norm=field(False, "a norm (of `norm`) on the embedded tokens, before the first layer (BLOOM)"),
    residual=field("serial", "serial: the MLP reads what attention wrote; parallel: both read one input (GPT-J)",
                   choice("serial", "parallel")),
    tie_embeddings=field(True, "the output matrix is the embedding's transpose"),
    logit_soft_cap=unset(float, "output logits become cap * tanh(logits / cap); unset: none", _POSITIVE),
    dropout=field(0.0, "rate, on the embedding and on each residual branch", interval("[0, 1)")),
    init=field("truncated_normal", "of every weight matrix: truncated_normal (at two deviations) or normal",
               choice("truncated_normal", "normal")),
    mup_base_width=unset(int, "muP (2203.03466, table 8): the width at which it is the standard parametrisation, so "
                         "that one learning rate serves all widths (docs/ladder.md); unset: standard", _POSITIVE),
    init_std=unset(float, "of every weight matrix; unset: 1/sqrt(fan-in); residual outputs / sqrt(2 L)", _POSITIVE),
    dtype=field("auto", "compute: float32, bfloat16, or auto (float32 on the CPU, bfloat16 elsewhere)",
                choice("auto", "float32", "bfloat16")),
    scan_layers=field("auto", "one compiled layer for all: yes, no, or auto (yes on accelerators, no on the CPU)",
                      choice("auto", "yes", "no")),
    loss_block=unset(int, "tokens of each row whose logits exist at once in training; 0: all; unset: all on the CPU "
                     "and up to 256 MiB of them, else as many as take 256 MiB", _NOT_NEGATIVE),
    remat=field("none", "what a layer's backward pass computes again: none, attention (all but attention's output), "
                "projections (all but what comes out of weight matrices), or block (all)",
                choice("none", "block", "attention", "projections")),
    attention=_ATTENTION,
    position=_POSITION,
)  # fmt: skip

_RETRIEVAL = group(
    haystack=field("own", "of tasks in words: own (the task's), noise, text (the run's own) or distractors",
                   choice("own", *tasks.HAYSTACKS)),
    form=field("full", "full: sentences as published; short: `#ab=12;`, so that a needle fits a short row",
               choice("full", "short")),
    needles=field(4, "most needles (multikey_1, multivalue, multiquery), hops (variable_tracking) or tokens "
                  "(induction_repeat, selective_copy) a row; training draws 1 .. needles, evaluation asks exactly so "
                  "many",
                  _POSITIVE),
    digits=field(0, "of numbers; 0: as published (niah_* 7, passkey and variable_tracking 5)",
                 rule("0 (as published) or 2 .. 18", lambda value: value == 0 or 2 <= value <= 18)),
    letters=field(2, "of keys and names in the short form", _POSITIVE),
    vocab_size=field(64, "tokens of induction_* and selective_copy", at_least(16)),
    questions=field("", "qa: a JSON file in SQuAD's format (docs/retrieval.md)", compare=_NOTHING),
    answer_weight=field(1.0, "loss weight of answers' tokens in training", _POSITIVE, compare=_NOTHING),
    text_weight=field(0.0, "loss weight of every other token of a task's rows in training", _NOT_NEGATIVE,
                      compare=_NOTHING),
).of(compare=(*_QUALITY, "heads"))  # fmt: skip

# Documents and their split are in every result's `data`, wherever they lie and however they were named: what leads to
# them shapes nothing by itself. Nor does what is training's alone; the mixture of every stage is in `data` as well.

_DATA = group(
    source=field("stdlib", sources.MEANING, choice(*sources.SOURCES),
                 resolve=lambda config: sources.source(config.data), compare=_NOTHING),
    path=field("", "files: a glob of text, JSON lines or token files (docs/data.md); setting it selects files",
               compare=_NOTHING),
    mixture=field((), "several texts: dict(path=, weight=, validation_path=, name=) of each; rows are drawn in "
                  "proportion to weights (docs/data.md); setting it selects mixture", compare=_NOTHING),
    validation_path=field("", "a glob of what validates; empty: a part of data.path by `split`, or TFDS's split",
                          compare=_NOTHING),
    validation_in_train=field(0.5, "largest share of validation documents that may be training documents too, word for "
                              "word; where all are, the data is refused in any case", interval("[0, 1]"),
                              compare=_NOTHING),
    vocab_size=unset(int, "token files: ids are below it; unset: the tokenizer's, or model.vocab_size", _POSITIVE,
                     compare=_NOTHING),
    separator=unset(int, "token files: the id between documents; unset: the tokenizer's, if there is one",
                    _NOT_NEGATIVE, compare=_NOTHING),
    field=field("text", "the text's key in JSON lines and TFDS features", compare=_NOTHING),
    split=field("hash", "files: hash (of path and .jsonl line; one text is cut) or first (the first train_share)",
                choice("hash", "first"), compare=_NOTHING),
    train_share=field(0.9, "files: share of the text (first) or of the files (hash) that trains", interval("(0, 1)"),
                      compare=_NOTHING),
    tfds=group(
        name=field("", 'a TFDS data set, "name" or "name/config:version"; setting it selects source = tfds'),
        data_dir=field("", "where it was prepared; empty: TFDS's own default"),
        train_split=field("train", "TFDS split that trains"),
        validation_split=field("validation", "TFDS split that validates"),
    ).of(compare=_NOTHING),
    cache_dir=field("", "where prepared corpora lie; empty: $ABLAX_CACHE, else the user's cache folder", resume=True,
                    compare=_NOTHING),
    tokenizer=field("byte", "byte, char (the whole text's characters), a path to a tokenizer.json, or none (token "
                    "files)", compare=_NOTHING),
    length=field(256, "T, tokens a row", _POSITIVE),
    batch_size=field(16, "B, rows a step, over all devices and micro-batches", _POSITIVE,
                     compare=(*_COST, "equivalence")),
    micro_batches=field(1, "each step's batch is split into this many, gradients added up weighted by tokens",
                        _POSITIVE, program=STATIC, compare=_COST),
    packing=field("contiguous", "contiguous (rows cut from one stream) or segments (whole documents with segment ids)",
                  choice("contiguous", "segments")),
    workers=field(0, "processes that prepare batches; 0: a thread of this process", _NOT_NEGATIVE, resume=True,
                  compare=_NOTHING),
    prefetch=field(4, "batches prepared ahead", _NOT_NEGATIVE, resume=True, compare=_NOTHING),
    weights=group(
        text=field(1.0, "share of rows from the text, relative to the others", _NOT_NEGATIVE),
        mqar=field(0.0, "share of rows from key-value recall, bare pairs", _NOT_NEGATIVE),
        **{name: field(0.0, "share of rows from a task of data/retrieval; docs/retrieval.md describes each",
                       _NOT_NEGATIVE) for name in tasks.TASKS},
    ).of(compare=_NOTHING),
    mqar=group(
        pairs=field(4, "most key-value pairs a row; drawn uniformly from 1 .. pairs; 4 * pairs <= length + 1",
                    _POSITIVE),
        vocab_size=field(64, "keys are drawn from the lower half, values from the upper",
                         rule("an even number, 6 or more", lambda value: value >= 6 and value % 2 == 0)),
        power=field(0.01, "mqar_gaps: a question is at position g with p ~ g**(power - 1); 1: uniform",
                    interval("(0, 1]")),
        filler=field("blank", "mqar_gaps: between questions token 0 (blank) or tokens of no pair (random)",
                     choice("blank", "random")),
    ).of(compare=(*_QUALITY, "heads")),
    retrieval=_RETRIEVAL,
    curriculum=field((), "stages before this setting: dict(steps=, length=, batch_size=, pairs=, needles=, "
                     "weights=dict(...)); what a stage leaves out is the main setting's", compare=_NOTHING),
).of(program=NONE)  # fmt: skip

_DEVICES = rule("1 or more, or -1", lambda value: value >= 1 or value == -1)

_MESH = group(  # devices that share a run: their product; docs/devices.md
    data=field(1, "devices that rows are divided over; -1 (of one axis): all that the others leave", _DEVICES),
    fsdp=field(1, "devices that rows, and parameters and optimizer state by width, are divided over; or -1", _DEVICES),
    context=field(1, "devices that the tokens of a row are divided over, as in evaluation at long lengths",
                  at_least(1)),
    tensor=field(1, "devices that heads, MLP units and the vocabulary are divided over", at_least(1)),
    kv_heads=field("replicate", "where tensor does not divide KV heads: replicate them, or refuse the config",
                   choice(*mesh.KV_HEADS)),
).of(resume=True)  # fmt: skip

_OPTIMIZER = group(
    kind=field("adamw", "training/step/optimizers has a file for each; docs/optimizers.md", choice(*optimizer.KINDS)),
    learning_rate=field(1e-3, "peak", _POSITIVE, program=ARGUMENT, pack=True),
    schedule=field("cosine", "cosine, wsd (warm-up, stable, linear decay) or constant",
                   choice("cosine", "wsd", "constant"), program=ARGUMENT),
    warmup_steps=field(100, "steps of linear rise from 0", _NOT_NEGATIVE, program=ARGUMENT),
    decay_share=field(0.2, "wsd: share of the budget spent on the decay", interval("(0, 1]"), program=ARGUMENT),
    final_share=field(0.1, "the last learning rate as a share of the peak", interval("[0, 1]"), program=ARGUMENT),
    beta1=field(0.9, "AdamW, Lion; schedule-free: share of the average in where gradients are taken",
                interval("[0, 1)")),
    beta2=field(0.95, "AdamW, Lion, schedule-free", interval("[0, 1)")),
    eps=field(1e-8, "AdamW, schedule-free", _POSITIVE),
    weight_decay=field(0.1, "decoupled, times the learning rate; none on norms and biases", _NOT_NEGATIVE, pack=True),
    clip_norm=field(1.0, "largest global gradient norm; 0: no clipping", _NOT_NEGATIVE),
    z_loss=field(0.0, "weight of log(Z)**2, which keeps logits from drifting", _NOT_NEGATIVE),
    muon=group(  # of the matrices of each layer; all other parameters are AdamW's
        learning_rate=field(0.02, "peak for the matrices of the layers; optimizer.learning_rate is that of the rest",
                            _POSITIVE, program=ARGUMENT, pack=True),
        momentum=field(0.95, "decay of the mean of gradients", interval("[0, 1)")),
        nesterov=field(True, "Nesterov's momentum"),
        steps=field(5, "Newton-Schulz iterations", interval("[1, 20]")),
    ),
    adafactor=group(
        decay_rate=field(0.8, "exponent c of the second moment's decay 1 - t**-c", interval("(0, 1]")),
        clip_threshold=field(1.0, "largest root mean square of a matrix's update; 0: no clipping", _NOT_NEGATIVE),
        factor_from=field(128, "matrices with both dims of this size keep row and column means alone", at_least(1)),
        parameter_scale=field(True, "updates are relative to the root mean square of the parameter"),
    ),
)  # fmt: skip

_WATCH = group(  # what ends a run early, as diverged and with a reason; all off. docs/heads.md
    gradients=field(False, "a gradient that is not finite: reported at its own step, and no checkpoint holds what it "
                    "made"),
    loss_spike=field(0.0, "a training loss so many nats above the median of the steps before, in a run that keeps two "
                     "copies of its state to save what it was before the spike; 0: not watched", _NOT_NEGATIVE),
    loss_steps=field(50, "steps of that median; nothing counts as a spike before so many", _POSITIVE),
    attention_logit=field(0.0, "an attention score of this size, at the validation interval; 0: not watched",
                          _NOT_NEGATIVE),
    dead_heads=field(0.0, "more than this share of heads that write nothing, at the validation interval; 0: not "
                     "watched", interval("[0, 1)", ", 0 for not watched")),
).of(resume=True, program=NONE)  # fmt: skip

_EVAL = group(
    every_steps=field(0, "steps between validation losses while training; 0: only at the end", _NOT_NEGATIVE,
                      compare=_NOTHING),
    tokens=field(65536, "validation tokens of those losses, and of each length beyond 1x; 0: the whole split",
                 _NOT_NEGATIVE, compare=("loss",)),
    split=field("validation", "text that eval/loss.json scores: validation (all of it), or one of its two parts: "
                "selection (trials of a sweep's `select`) or test (what it then claims)",
                choice("validation", "selection", "test")),
    loss_tokens=field(0, "validation tokens of the loss at 1x in eval/loss.json; 0: the whole split", _NOT_NEGATIVE),
    batch_size=field(16, "rows at 1x; fewer at longer lengths, so that the tokens a batch stay equal", _POSITIVE,
                     compare=("heads",)),  # the same rows in other batches; heads fills up its last one
    multiples=field((1, 2, 4), "lengths evaluated, in multiples of data.length",
                    each("numbers above 0", (int, float), lambda item: item > 0), compare=_QUALITY),
    lengths=field((), "further lengths evaluated, in tokens", _COUNTS, compare=_QUALITY),
    sliding=field(0.0, "share of each length by which sliding windows move, in (0, 1]; 0: none are evaluated",
                  rule("in (0, 1], or 0 for none", lambda value: 0 <= value <= 1), compare=("loss",)),
    control=field(True, "the loss beyond the training length also with attention windows of that length"),
    scalings=field((), 'RoPE scalings applied at evaluation only, beside the run\'s own, e.g. ("linear", "yarn")',
                   each(positions.SCALINGS), compare=_QUALITY),
    scaling_factor=field(0.0, "their factor, 1 or more; 0: each length over scaling.original_length",
                         rule("1 or more, or 0 for what each length needs", lambda value: value >= 1 or value == 0),
                         compare=_QUALITY),
    bootstrap=field(1000, "resamples of an interval, which steady it", _POSITIVE, compare=_NOTHING),
    kv_storage=field("model", "of the KV cache, to measure another: model (the run's own), auto, int8 or fp8",
                     choice("model", "auto", "int8", "fp8")),
    retrieval=group(
        task=field("auto", "mqar, a task of data/retrieval, or auto (the one trained on, else passkey)",
                   choice("auto", *tasks.SYNTHETIC)),
        questions=field("", "qa: a JSON file in SQuAD's format; empty: data.retrieval.questions", compare=_NOTHING),
        haystack=field("auto", "own, noise, text, distractors, or auto (data.retrieval.haystack)",
                       choice("auto", "own", *tasks.HAYSTACKS), compare=_QUALITY),
        filler=field("auto", "of mqar and mqar_gaps, beyond the training length, between the pairs and the questions "
                     "that count: questions (for other pairs), gaps, text, or auto (gaps for mqar_gaps, else "
                     "questions)",
                     choice("auto", *tasks.FILLERS), compare=_QUALITY),
        control=field(True, "beyond the training length also ask the model with its attention window set to the "
                      "training length (the local baseline): what it answers was not retrieved from far"),
        depths=field(5, "points over 0 .. 1; equal bins where a row asks at every depth, as mqar's do", _POSITIVE),
        needles=field((), "numbers asked for, each in rows of its own: pairs, needles, hops or tokens; empty: "
                      "data.mqar.pairs or data.retrieval.needles, as the run trains with", _COUNTS),
        examples=field(64, "rows a length and depth (one needle is put there) or a length (bins)", _POSITIVE),
        threshold=field("ruler", "accuracy of the effective length: pi, yarn, ruler or a number", tasks.THRESHOLD),
        generate=field(True, "also generate the answer through the KV cache, for exact match and the share of answers "
                       "found in what is generated"),
        extra_tokens=field(0, "generated beyond the answers' own number; an answer may be found there", _NOT_NEGATIVE),
    ).of(compare=("retrieval",)),
    equivalence=group(
        length=field(96, "tokens a row; 0: data.length", _NOT_NEGATIVE),
        batch_size=field(2, "rows; 0: data.batch_size", _NOT_NEGATIVE),
    ).of(compare=("equivalence",)),
    heads=group(
        length=field(0, "tokens a row; 0: data.length", _NOT_NEGATIVE),
        rows=field(64, "held-out rows that are looked at", _POSITIVE),
        importance=field(True, "also take each head away in turn: layers x heads passes over those rows"),
    ).of(compare=("heads",)),
    throughput=group(
        batch_size=field(0, "rows of train and prefill; 0: data.batch_size", _NOT_NEGATIVE),
        length=field(0, "tokens a row, and of decode's prompt; 0: data.length", _NOT_NEGATIVE),
        decode_batch_size=field(1, "rows of decode", _POSITIVE),
        new_tokens=field(32, "tokens decoded", _POSITIVE),
        repeats=field(5, "timed repeats after warm-up; the median is reported", _POSITIVE),
        batch_sizes=field((), "also every program over these rows, a grid with `lengths`", _COUNTS),
        lengths=field((), "tokens a row (of decode's prompt) of the grid; one of the two empty: its own", _COUNTS),
    ).of(compare=_COST),
    memory=group(
        limit_gib=field(0.0, "also find the largest batch and length whose programs fit so many GiB; 0: do not",
                        _NOT_NEGATIVE),
    ).of(compare=("memory",)),
).of(resume=True, program=NONE)  # fmt: skip

SCHEMA = Schema(group(
    name=field("", "a label for reports", resume=True, program=NONE, pack=True),
    seed=field(0, "fixes initialisation, data order and dropout; any whole number in 0 .. 2**63 - 1",
               rule("0 .. 2**63 - 1", lambda value: 0 <= value < 2**63, largest=None), program=ARGUMENT, pack=True),
    tracker=field("none", "where metrics also go: Weights & Biases or MLflow, set up by their own variables (WANDB_*, "
                  "MLFLOW_*)", choice("none", "wandb", "mlflow"), resume=True, program=NONE),
    init_from=field("", 'a run directory whose parameters start this run (in sweeps "arm:NAME"); empty: random',
                    program=NONE),
    init_state=field("parameters", "what is taken of init_from: parameters, or branch: all of its state, with the "
                     "checkpoint at which this run's learning rates leave its own (docs/ladder.md)",
                     choice("parameters", "branch"), program=NONE),
    model=_MODEL,
    data=_DATA,
    mesh=_MESH,
    budget=group(
        kind=field("steps", "steps, tokens, flops or seconds (of training, compilation and evaluation left out)",
                   choice("steps", "tokens", "flops", "seconds")),
        amount=field(1000.0, "how many of them; training ends with the first step that reaches it", _POSITIVE),
    ).of(program=NONE),
    optimizer=_OPTIMIZER,
    checkpoint=group(
        every_steps=field(500, "steps between checkpoints; 0: only at the end and on a signal", _NOT_NEGATIVE),
        keep=field(2, "how many of the last checkpoints stay; the best by validation loss stays beside them",
                   _POSITIVE),
        branches=field((), "smaller budgets, for each of which a checkpoint is kept where its decay begins",
                       each("numbers above 0", (int, float), lambda item: 0 < item < math.inf)),
    ).of(resume=True, program=NONE),
    watch=_WATCH,
    log=group(
        every_steps=field(10, "steps between lines of metrics.jsonl", _POSITIVE),
        tensorboard=field(True, "also write TensorBoard event files, with the config, to WORKDIR/tensorboard"),
    ).of(resume=True, program=NONE),
    eval=_EVAL,
))  # fmt: skip


def get_config() -> ConfigDict:
    """Returns the default experiment: a small byte-level language model on the built-in corpus."""
    return SCHEMA.config()
