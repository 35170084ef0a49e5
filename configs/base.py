"""The schema: every field of an experiment once, with its default and its unit or meaning.

A preset is a file with `get_config()` that calls this one and changes a few fields; the command line changes more
(`--config.model.num_heads=8`). A field that is unset (`placeholder`) resolves to the value its comment names, and the
resolved value is written to the run's `config.json`. `configs/validate.py` says what is allowed.
"""

from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder

from configs import tasks


def get_config() -> ConfigDict:
    """Returns the default experiment: a small byte-level language model on the built-in corpus."""
    config = ConfigDict()
    config.name = ""  # a label for reports
    config.seed = 0  # fixes initialisation, data order and dropout; any whole number in 0 .. 2**63 - 1
    config.tracker = "none"  # none, or wandb: metrics also go to Weights & Biases, set up by its own WANDB_* variables
    config.init_from = ""  # a run directory whose parameters start this run (in sweeps "arm:NAME"); empty: random
    config.init_state = "parameters"  # what is taken of init_from: parameters, or branch: all of its state, with the
    # checkpoint at which this run's learning rates leave its own (docs/ladder.md)
    config.model = _model()
    config.data = _data()
    config.mesh = _mesh()
    config.budget = ConfigDict()
    config.budget.kind = "steps"  # steps, tokens, flops or seconds (of training, compilation and evaluation left out)
    config.budget.amount = 1000.0  # how many of them; training ends with the first step that reaches it
    config.optimizer = _optimizer()
    config.checkpoint = ConfigDict()
    config.checkpoint.every_steps = 500  # steps between checkpoints; 0: only at the end and on a signal
    config.checkpoint.keep = 2  # how many of the last checkpoints stay; the best by validation loss stays beside them
    config.checkpoint.branches = ()  # smaller budgets, for each of which a checkpoint is kept where its decay begins
    config.watch = _watch()
    config.log = ConfigDict()
    config.log.every_steps = 10  # steps between lines of metrics.jsonl
    config.log.tensorboard = True  # also write TensorBoard event files, with the config, to WORKDIR/tensorboard
    config.eval = _eval()
    return config


def _model() -> ConfigDict:
    model = ConfigDict()
    model.vocab_size = placeholder(int)  # tokens; unset: the tokenizer's (and never less than data.mqar.vocab_size)
    model.width = 256  # D, the residual stream
    model.num_layers = 4  # L
    model.num_heads = 8  # H, query heads
    model.head_dim = placeholder(int)  # K, free of width; unset: width // num_heads
    model.num_kv_heads = placeholder(int)  # G, key/value heads (KV groups): 1 = MQA; unset: num_heads = MHA
    model.mlp = "swiglu"  # swiglu, gelu (tanh form), gelu_exact, relu2 or relu
    model.mlp_width = placeholder(int)  # F; unset: 8/3 width for swiglu, 4 width otherwise, rounded up to 16
    model.mlp_bias = False  # biases in the MLP
    model.norm = "rmsnorm"  # rmsnorm or layernorm
    model.norm_bias = False  # a bias in layernorm (rmsnorm has none)
    model.norm_eps = 1e-6  # added to the variance
    model.embedding_norm = False  # a norm (of `norm`) on the embedded tokens, before the first layer (BLOOM)
    model.residual = "serial"  # serial: the MLP reads what attention wrote; parallel: both read one input (GPT-J)
    model.tie_embeddings = True  # the output matrix is the embedding's transpose
    model.logit_soft_cap = placeholder(float)  # output logits become cap * tanh(logits / cap); unset: none
    model.dropout = 0.0  # rate in [0, 1) on the embedding and on each residual branch
    model.init = "truncated_normal"  # of every weight matrix: truncated_normal (at two deviations) or normal
    model.init_std = placeholder(float)  # of every weight matrix; unset: 1/sqrt(fan-in); residual outputs / sqrt(2 L)
    model.dtype = "auto"  # compute: float32, bfloat16, or auto (float32 on the CPU, bfloat16 elsewhere)
    model.scan_layers = "auto"  # one compiled layer for all: yes, no, or auto (yes on accelerators, no on the CPU)
    model.remat = "none"  # none, or block: each layer's activations are computed again in the backward pass
    model.attention = ConfigDict()
    model.attention.kind = "gqa"  # gqa (num_kv_heads heads, so MHA and MQA too) or mla (multi-head latent, 2405.04434)
    model.attention.mla = ConfigDict()  # kind = mla; the unset sizes resolve to DeepSeek-V2's proportions
    model.attention.mla.kv_rank = placeholder(int)  # of the latent that keys and values come from; unset: 4 head_dim
    model.attention.mla.query_rank = placeholder(int)  # of the queries' latent; unset: queries come from the input
    model.attention.mla.nope_dim = placeholder(int)  # of queries and keys, each head's own, not turned; unset: head_dim
    model.attention.mla.rope_dim = placeholder(int)  # of queries and of the key all heads share; unset: head_dim / 2
    model.attention.mla.value_dim = placeholder(int)  # of values; unset: head_dim
    model.attention.qkv = "split"  # split (three matrices) or fused (one of width (H + 2 G) K)
    model.attention.qkv_bias = False  # biases on queries, keys and values
    model.attention.out_bias = False  # a bias on the output projection
    model.attention.kernel = "auto"  # auto, reference, blocked, xla, cudnn (NVIDIA), splash or flash (TPU)
    model.attention.window = placeholder(int)  # keys seen by each query, itself included; unset: all before it
    model.attention.window_pattern = ()  # windows by layer, repeated, 0 = no window, e.g. (64, 64, 0); empty: `window`
    model.attention.qk_norm = False  # RMSNorm over head_dim of queries and keys, before rotation
    model.attention.soft_cap = placeholder(float)  # scores become cap * tanh(scores / cap); unset: none
    model.attention.sinks = False  # a learned score in each head's softmax, of a key with value 0 (gpt-oss)
    model.attention.scale_rule = "auto"  # of q.k: sqrt (1/sqrt(head_dim)), mup (1/head_dim, arXiv 2203.03466), or auto;
    # head_dim is that of queries, nope_dim + rope_dim for mla
    model.attention.scale = placeholder(float)  # a number that multiplies q.k; auto: this where set, else sqrt
    model.attention.kv_storage = "auto"  # of the KV cache: auto (the compute dtype), int8 or fp8 (8 bits and a scale)
    model.position = ConfigDict()
    model.position.kind = "rope"  # none, learned, sinusoidal, rope, p_rope, xpos, alibi, t5, kerple_log, kerple_power,
    # fire or cope; models/positions has a file for each
    model.position.pattern = ()  # kinds by layer, repeated, e.g. ("rope", "rope", "none"); empty: `kind` everywhere
    model.position.max_length = placeholder(int)  # rows of the learned table; unset: the longest training length
    model.position.rope = ConfigDict()
    model.position.rope.theta = 10000.0  # base of the wavelengths
    model.position.rope.fraction = 1.0  # share of head_dim that turns, in (0, 1]; p_rope: of its frequencies
    model.position.rope.pairing = "half"  # half: dim i with i + r/2; interleaved: dim 2i with 2i + 1
    model.position.rope.scaling = _rope_scaling()
    model.position.xpos = ConfigDict()
    model.position.xpos.base = 512.0  # positions over which pair i of the scores fades by its zeta_i
    model.position.t5 = ConfigDict()
    model.position.t5.buckets = 32  # rows of the table: half for one distance each, half growing logarithmically
    model.position.t5.max_distance = 128  # distances from here on share the last bucket
    model.position.fire = ConfigDict()
    model.position.fire.hidden = 32  # units of the function's hidden layer
    model.position.fire.c = 0.1  # first value of c in psi(x) = ln(c x + 1)
    model.position.fire.threshold = 512.0  # first value of L, the position from which distances are interpolated
    model.position.cope = ConfigDict()
    model.position.cope.rows = 64  # of the table; contextual positions are clipped to the last
    model.position.temperature = ConfigDict()  # a factor on queries that grows with their position
    model.position.temperature.kind = "none"  # none, log_n, llama4 or ministral3
    model.position.temperature.length = placeholder(int)  # L0, tokens; unset: rope.scaling.original_length
    model.position.temperature.beta = 0.1  # llama4, ministral3: weight of the logarithm
    model.position.temperature.layers = "auto"  # all, nope (without positions), or auto: nope for llama4, else all
    return model


def _rope_scaling() -> ConfigDict:
    scaling = ConfigDict()
    scaling.kind = "none"  # none, linear, ntk, ntk_by_parts, dynamic, yarn, llama3 or longrope
    scaling.factor = 1.0  # s >= 1, the stretch
    scaling.original_length = placeholder(int)  # tokens, the length before stretching; unset: data.length
    scaling.beta_fast = 32.0  # yarn, ntk_by_parts: rotations above which a dim keeps its frequency
    scaling.beta_slow = 1.0  # yarn, ntk_by_parts: rotations below which a dim is interpolated by the factor
    scaling.truncate = True  # yarn: round the ramp's ends outward to whole dims
    scaling.attention_factor = placeholder(float)  # yarn, longrope: multiplies cos and sin; unset: see the scaling
    scaling.mscale = placeholder(float)  # yarn: with mscale_all_dim, the factor is the quotient of the two
    scaling.mscale_all_dim = placeholder(float)  # yarn: see mscale
    scaling.low_freq_factor = 1.0  # llama3: wavelengths above original_length / this are divided by the factor
    scaling.high_freq_factor = 4.0  # llama3: wavelengths below original_length / this are kept
    scaling.short_factor = ()  # longrope: divides each pair's frequency up to original_length, one number a pair
    scaling.long_factor = ()  # longrope: the same, for longer sequences
    return scaling


def _data() -> ConfigDict:
    data = ConfigDict()
    data.source = "stdlib"  # text: stdlib (built in), files (data.path) or tfds (data.tfds)
    data.path = ""  # files: a glob of text files or JSON lines; setting it selects source = files
    data.field = "text"  # the text's key in JSON lines and TFDS features
    data.split = "hash"  # files: hash (of path and .jsonl line; one text is cut) or first (the first train_share)
    data.train_share = 0.9  # files: share of the text (first) or of the files (hash) that trains
    data.tfds = ConfigDict()
    data.tfds.name = ""  # a TFDS data set, "name" or "name/config:version"; setting it selects source = tfds
    data.tfds.data_dir = ""  # where it was prepared; empty: TFDS's own default
    data.tfds.train_split = "train"  # TFDS split that trains
    data.tfds.validation_split = "validation"  # TFDS split that validates
    data.cache_dir = ""  # where prepared corpora lie; empty: $ABLAX_CACHE, else the user's cache folder
    data.tokenizer = "byte"  # byte, char (the whole text's characters) or a path to a tokenizer.json
    data.length = 256  # T, tokens a row
    data.batch_size = 16  # B, rows a step, over all devices and micro-batches
    data.micro_batches = 1  # each step's batch is split into this many, gradients added up weighted by tokens
    data.packing = "contiguous"  # contiguous (rows cut from one stream) or segments (whole documents with segment ids)
    data.workers = 0  # processes that prepare batches; 0: a thread of this process
    data.prefetch = 4  # batches prepared ahead
    data.weights = ConfigDict()
    data.weights.text = 1.0  # share of rows from the text, relative to the others
    data.weights.mqar = 0.0  # share of rows from key-value recall, bare pairs
    for task in tasks.TASKS:
        data.weights[task] = 0.0  # share of rows from a task of data/retrieval; docs/retrieval.md describes each
    data.mqar = ConfigDict()
    data.mqar.pairs = 4  # most key-value pairs a row; drawn uniformly from 1 .. pairs; 4 * pairs <= length + 1
    data.mqar.vocab_size = 64  # keys are drawn from the lower half, values from the upper
    data.mqar.power = 0.01  # mqar_gaps: a question stands in place g with p ~ g**(power - 1); 1: anywhere alike
    data.mqar.filler = "blank"  # mqar_gaps: between questions token 0 (blank) or tokens of no pair (random)
    data.retrieval = _retrieval()
    data.curriculum = ()  # stages before this setting: dict(steps=, length=, batch_size=, pairs=, ...)
    # (a stage may also give needles= and weights=dict(...); what it leaves out is the main setting's)
    return data


def _retrieval() -> ConfigDict:
    retrieval = ConfigDict()
    retrieval.haystack = "own"  # of tasks in words: own (the task's), noise, text (the run's own) or distractors
    retrieval.form = "full"  # full: sentences as published; short: `#ab=12;`, so that a needle fits a short row
    retrieval.needles = 4  # most needles (multikey_1, multivalue, multiquery), hops (variable_tracking) or tokens
    # (induction_repeat, selective_copy) a row; training draws 1 .. needles, evaluation asks exactly so many
    retrieval.digits = 0  # of numbers; 0: as published (niah_* 7, passkey and variable_tracking 5)
    retrieval.letters = 2  # of keys and names in the short form
    retrieval.vocab_size = 64  # tokens of induction_* and selective_copy
    retrieval.answer_weight = 1.0  # loss weight of answers' tokens in training
    retrieval.text_weight = 0.0  # loss weight of every other token of a task's rows in training
    return retrieval


def _mesh() -> ConfigDict:
    mesh = ConfigDict()  # devices that share a run: their product; docs/devices.md
    mesh.data = 1  # devices that rows are divided over; -1 (of one axis): all that the others leave
    mesh.fsdp = 1  # devices that rows, and parameters and optimizer state by width, are divided over; or -1
    mesh.context = 1  # devices that the tokens of a row are divided over, as in evaluation at long lengths
    mesh.tensor = 1  # devices that heads, MLP units and the vocabulary are divided over
    mesh.kv_heads = "replicate"  # where tensor does not divide KV heads: replicate them, or refuse the config
    return mesh


def _optimizer() -> ConfigDict:
    optimizer = ConfigDict()
    optimizer.learning_rate = 1e-3  # peak
    optimizer.schedule = "cosine"  # cosine, wsd (warm-up, stable, linear decay) or constant
    optimizer.warmup_steps = 100  # steps of linear rise from 0
    optimizer.decay_share = 0.2  # wsd: share of the budget spent on the decay
    optimizer.final_share = 0.1  # the last learning rate as a share of the peak
    optimizer.beta1 = 0.9  # AdamW
    optimizer.beta2 = 0.95  # AdamW
    optimizer.eps = 1e-8  # AdamW
    optimizer.weight_decay = 0.1  # decoupled, times the learning rate; none on norms and biases
    optimizer.clip_norm = 1.0  # largest global gradient norm; 0: no clipping
    optimizer.z_loss = 0.0  # weight of log(Z)**2, which keeps logits from drifting
    return optimizer


def _watch() -> ConfigDict:
    watch = ConfigDict()  # what ends a run early, as diverged and with a reason; all off. docs/heads.md
    watch.gradients = False  # a gradient that is not finite: told at its own step, and no checkpoint holds what it made
    watch.loss_spike = 0.0  # a training loss so many nats above the median of the steps before, in a run that keeps two
    # copies of its state to save what it was before the spike; 0: not watched
    watch.loss_steps = 50  # steps of that median; nothing counts as a spike before so many
    watch.attention_logit = 0.0  # an attention score of this size, at the validation interval; 0: not watched
    watch.dead_heads = (
        0.0  # more than this share of heads that write nothing, at the validation interval; 0: not watched
    )
    return watch


def _eval() -> ConfigDict:
    evaluation = ConfigDict()
    evaluation.every_steps = 0  # steps between validation losses while training; 0: only at the end
    evaluation.tokens = 65536  # validation tokens of those losses, and of each length beyond 1x; 0: the whole split
    evaluation.batch_size = 16  # rows at 1x; fewer at longer lengths, so that the tokens a batch stay equal
    evaluation.multiples = (1, 2, 4)  # lengths evaluated, in multiples of data.length
    evaluation.lengths = ()  # further lengths evaluated, in tokens
    evaluation.sliding = 0.0  # share of each length by which sliding windows move, in (0, 1]; 0: none are evaluated
    evaluation.scalings = ()  # RoPE scalings applied at evaluation only, beside the run's own, e.g. ("linear", "yarn")
    evaluation.scaling_factor = 0.0  # their factor, 1 or more; 0: each length over scaling.original_length
    evaluation.bootstrap = 1000  # resamples of an interval
    evaluation.kv_storage = "model"  # of the KV cache, to measure another: model (the run's own), auto, int8 or fp8
    evaluation.retrieval = ConfigDict()
    evaluation.retrieval.task = "auto"  # mqar, a task of data/retrieval, or auto (the one trained on, else passkey)
    evaluation.retrieval.haystack = "auto"  # own, noise, text, distractors, or auto (data.retrieval.haystack)
    evaluation.retrieval.depths = 5  # points over 0 .. 1; equal bins where a row asks at every depth, as mqar's do
    evaluation.retrieval.needles = ()  # numbers asked for, each in rows of its own: pairs, needles, hops or tokens;
    # empty: data.mqar.pairs or data.retrieval.needles, as the run trains with
    evaluation.retrieval.examples = 64  # rows a length and depth (one needle is put there) or a length (bins)
    evaluation.retrieval.threshold = "ruler"  # accuracy of the effective length: pi, yarn, ruler or a number
    evaluation.retrieval.generate = True  # also generate the answer through the KV cache, for exact match and the
    # share of answers found in what is generated
    evaluation.retrieval.extra_tokens = 0  # generated beyond the answers' own number; an answer may be found there
    evaluation.equivalence = ConfigDict()
    evaluation.equivalence.length = 96  # tokens a row; 0: data.length
    evaluation.equivalence.batch_size = 2  # rows; 0: data.batch_size
    evaluation.heads = ConfigDict()
    evaluation.heads.length = 0  # tokens a row; 0: data.length
    evaluation.heads.rows = 64  # held-out rows that are looked at
    evaluation.heads.importance = True  # also take each head away in turn: layers x heads passes over those rows
    evaluation.throughput = ConfigDict()
    evaluation.throughput.batch_size = 0  # rows of train and prefill; 0: data.batch_size
    evaluation.throughput.length = 0  # tokens a row, and of decode's prompt; 0: data.length
    evaluation.throughput.decode_batch_size = 1  # rows of decode
    evaluation.throughput.new_tokens = 32  # tokens decoded
    evaluation.throughput.repeats = 5  # timed repeats after warm-up; the median is reported
    evaluation.throughput.batch_sizes = ()  # also every program over these rows, a grid with `lengths`
    evaluation.throughput.lengths = ()  # tokens a row (of decode's prompt) of the grid; one of the two empty: its own
    evaluation.memory = ConfigDict()
    evaluation.memory.limit_gib = (
        0.0  # also find the largest batch and length whose programs fit so many GiB; 0: do not
    )
    return evaluation
