"""The methods paragraph of each study, from its configs and run records, and the BibTeX of its citations.

Sentences contain citations as `[@key]` (Pandoc's form); methods.tex has `\\cite{key}` instead.
"""

import itertools
import math
import re

from configs import citations
from report.claims import words
from report.claims.comparable import swept
from report.claims.comparing import claims, comparisons, confidence, tested
from report.page import formats
from report.page.formats import count, listed, plural
from report.reading import curriculum
from report.reading.directories import Run, Study, Sweep, dig, mapping, number, text
from report.reading.settings import config_of, flat

VARIES = ""  # the value of a setting in which the arms differ, or that no config has
MOST = 12  # listed values of a varied field
# Values of choices as written in papers; others are unchanged.
WRITTEN = {
    "none": "no", "learned": "learned", "sinusoidal": "sinusoidal", "rope": "RoPE", "p_rope": "p-RoPE", "xpos": "xPos",
    "alibi": "ALiBi", "t5": "T5", "kerple_log": "logarithmic KERPLE", "kerple_power": "power KERPLE", "fire": "FIRE",
    "cope": "CoPE", "linear": "linear (position interpolation)", "ntk": "NTK-aware", "ntk_by_parts": "NTK-by-parts",
    "dynamic": "dynamic NTK", "yarn": "YaRN", "llama3": "Llama 3", "longrope": "LongRoPE", "swiglu": "SwiGLU",
    "gelu": "GELU (tanh form)", "gelu_exact": "GELU", "relu2": "squared-ReLU", "relu": "ReLU", "rmsnorm": "RMSNorm",
    "layernorm": "LayerNorm", "adamw": "AdamW", "muon": "Muon", "lion": "Lion", "adafactor": "Adafactor",
    "schedule_free_adamw": "schedule-free AdamW",
}  # fmt: skip
# Kinds of attention as written in papers, by what they cite; without an entry it is grouped-query.
ATTENTION = {
    (citations.MULTI_QUERY,): "multi-query",
    (citations.MULTI_HEAD,): "multi-head",
    citations.CITED["model.attention.kind"]["mla"]: "multi-head latent",
    citations.CITED["model.attention.kind"]["differential"]: "differential",
}
VERSIONS = ("python", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "grain", "numpy")
_CITATION = re.compile(r" \[@([\w;@ -]+)\]")


def paragraphs(study: Study) -> list[tuple[str, str]]:
    """Returns (heading, sentences) of the study's methods, with citations as [@key]."""
    facts = _Facts(study)
    parts = [
        ("Model", _model(facts)),
        ("Varied", _varied(facts)),
        ("Data", _data(facts)),
        ("Training", _training(facts)),
        ("Seeds", _seeds(study)),
        ("Statistics", _statistics(study)),
        ("Software and hardware", _software(facts)),
    ]
    return [(heading, said) for heading, said in parts if said]


class _Facts:
    """The common values of a study's configs and records."""

    def __init__(self, study: Study) -> None:
        self.study = study
        self.configs = [flat(config_of(arm)) for arm in study.arms]
        self.cited = [citations.keys(config_of(arm)) for arm in study.arms]
        self.runs = [run for arm in study.arms for run in arm.runs if run.info]

    def value(self, field: str) -> str:
        """Returns the common value of a field in all arms, as text; VARIES if they differ or none has it."""
        values = {config.get(field, VARIES) for config in self.configs}
        return values.pop() if len(values) == 1 else VARIES

    def cite(self, *fields: str) -> str:
        """Returns ` [@a; @b]` for the arms' choices in some fields; empty if there is nothing to cite."""
        keys = dict.fromkeys(key for one in self.cited for field in fields for key in one.get(field, ()))
        return _cited(*keys)

    def spread(self, *path: str) -> str:
        """Returns the minimum and maximum of a number in run.json: `140k`, or `140k to 164k`."""
        values = [value for run in self.runs if math.isfinite(value := number(dig(run.info, *path)))]
        ends = list(dict.fromkeys(count(value) for value in (min(values), max(values)))) if values else []
        return " to ".join(ends)

    def recorded(self, *path: str) -> list[str]:
        """Returns the distinct texts or numbers at a path of run.json."""
        values = [dig(run.info, *path) for run in self.runs]
        return list(dict.fromkeys(str(value) for value in values if isinstance(value, str | int | float)))


def _cited(*keys: str) -> str:
    return f" [{'; '.join(f'@{key}' for key in keys)}]" if keys else ""


def _model(facts: _Facts) -> str:
    value, parts = facts.value, []
    if layers := value("model.num_layers"):
        parts.append(f"{layers} layers")
    if width := value("model.width"):
        parts.append(f"width {width}")
    if heads := value("model.num_heads"):
        groups, dim = value("model.num_kv_heads"), value("model.head_dim")
        kv = f" ({groups} KV {'head' if groups == '1' else 'heads'})" if groups else ""
        parts.append(f"{plural(int(heads), 'head') if heads.isdigit() else heads}{f' of dim {dim}' if dim else ''}{kv}")
    parts.append(f"{_attention(facts)} attention{facts.cite('model.attention.kind')}")
    kind = value("model.position.kind")
    theta = value("model.position.rope.theta") if kind in citations.ROTARY else ""
    parts.append(f"{_written(kind)} positions{f' (theta {_plain(theta)})' if theta else ''}"
                 f"{facts.cite('model.position.kind')}")  # fmt: skip
    scaling = value("model.position.rope.scaling.kind")
    if scaling != "none" and facts.cite("model.position.rope.scaling.kind"):
        parts.append(f"{_written(scaling)} RoPE scaling{facts.cite('model.position.rope.scaling.kind')}")
    if mlp := value("model.mlp"):
        size = value("model.mlp_width")
        parts.append(f"{_written(mlp)} MLPs{f' of width {size}' if size else ''}{facts.cite('model.mlp')}")
    if norm := value("model.norm"):
        parts.append(f"{_written(norm)}{facts.cite('model.norm')}")
    amount = facts.spread("parameters", "total")
    said = f"The models are decoder-only Transformers with {listed(parts)}"
    said += f"; they have {amount} parameters." if amount else "."
    kernels = facts.recorded("attention_kernel")
    cites = [key for name in kernels for key in citations.CITED["model.attention.kernel"].get(name, ())]
    used = f" Attention used the {listed(kernels)} kernel{_cited(*dict.fromkeys(cites))}." if kernels else ""
    return said + used


def _written(value: str) -> str:
    return WRITTEN.get(value, value) or "the varied"


def _attention(facts: _Facts) -> str:
    """Returns the arms' kinds of attention: `multi-head and grouped-query`."""
    cited = dict.fromkeys(one.get("model.attention.kind", ()) for one in facts.cited)
    return listed([ATTENTION.get(keys, "grouped-query") for keys in cited])


def _varied(facts: _Facts) -> str:
    parts = []
    for field in swept(facts.study):
        values = list(dict.fromkeys(config.get(field, formats.DASH) for config in facts.configs))
        more = f" and {len(values) - MOST} more" if len(values) > MOST else ""
        parts.append(f"{field} ({', '.join(values[:MOST])}{more})")
    return f"The arms differ in {listed(parts)}." if parts else ""


def _data(facts: _Facts) -> str:
    tokenizers = facts.recorded("data", "tokenizer", "kind")
    vocabulary, length = facts.value("model.vocab_size"), facts.value("data.length")
    said = []
    for source in facts.recorded("data", "source")[:1]:
        size, files = facts.spread("data", "bytes"), facts.recorded("data", "files")
        if files == ["0"]:  # tasks alone: no text is read
            continue
        digest = ", ".join(one[:12] for one in facts.recorded("data", "sha256")[:3])
        made = f" of {files[0]} files" if len(files) == 1 else ""
        said.append(f"The text is the source {source!r}{made}{f', {size} bytes' if size else ''}"
                    f"{f' (SHA-256 {digest})' if digest else ''}.")  # fmt: skip
    if tokenizers:
        words = f"{listed(tokenizers)} tokenizer" + (f" with {vocabulary} tokens" if vocabulary else "")
        said.append(f"It is read with the {words}.")
    if length:
        batch = facts.value("data.batch_size")
        said.append(f"Rows have {length} tokens{f', batches have {batch} rows' if batch else ''}.")
    said += _curricula(facts)
    sources = _mixture(facts)
    return " ".join([*said, f"Rows are drawn by weight from {listed(sources)}." if sources else ""]).strip()


def _curricula(facts: _Facts) -> list[str]:
    """Returns the stages of training before the main setting, where arms have any, in a sentence."""
    stages = {arm.name: curriculum.stages(config_of(arm)) for arm in facts.study.arms}
    several = len({tuple(own) for own in stages.values()}) > 1
    said = []
    for name, own in stages.items() if several else list(stages.items())[:1]:
        if own:
            parts = [f"{count(one.tokens)} tokens in rows of {one.length:g}" for one in own]
            said.append(f"Training{f' of {name}' if several else ''} begins with {listed(parts)} (a curriculum).")
    return said


def _mixture(facts: _Facts) -> list[str]:
    """Returns the sources that the arms train on with their weights, if text is not the only one."""
    keys = [key for key in (facts.configs or [{}])[0] if key.startswith("data.weights.")]
    weights = {key.rsplit(".", 1)[-1]: facts.value(key) for key in keys}
    used = {name: value for name, value in weights.items() if value not in (VARIES, "0.0", "0")}
    return [f"{name} ({value})" for name, value in used.items()] if set(used) - {"text"} else []


def _training(facts: _Facts) -> str:
    value, said = facts.value, []
    kind, amount, tokens = value("budget.kind"), value("budget.amount"), facts.spread("tokens")
    if kind and amount:
        said.append(f"Every run trains for {_plain(amount)} {kind}{f' ({tokens} tokens)' if tokens else ''}.")
    elif tokens:
        said.append(f"Runs train for {tokens} tokens.")
    if optimizer := value("optimizer.kind"):
        parts = [
            f"{words} {_plain(one)}"
            for field, words in (
                ("optimizer.learning_rate", "peak learning rate"),
                ("optimizer.schedule", "schedule"),
                ("optimizer.warmup_steps", "warmup steps"),
                ("optimizer.weight_decay", "weight decay"),
                ("optimizer.clip_norm", "gradient clipping at norm"),
            )
            if (one := value(field))
        ]
        said.append(f"The optimizer is {_written(optimizer)}{facts.cite('optimizer.kind')}"
                    f"{f' with {listed(parts)}' if parts else ''}.")  # fmt: skip
    chosen = facts.study.selection
    if chosen is not None:
        said.append(f"{chosen.field} was chosen for each arm by validation loss on "
                    f"{plural(len(chosen.seeds), 'seed')} separate from those reported.")  # fmt: skip
    dtypes = facts.recorded("dtype")
    return " ".join([*said, f"Computation is in {listed(dtypes)}." if dtypes else ""]).strip()


def _plain(value: str) -> str:
    """Returns a number without a trailing `.0`."""
    return value.removesuffix(".0")


def _seeds(study: Study) -> str:
    done = sorted({len(arm.done) for arm in study.arms}) or [0]
    amount = f"{done[0]}" if len(done) == 1 else f"{done[0]} to {done[-1]}"
    planned = f" of {len(study.seeds)}" if done != [len(study.seeds)] else ""
    ended = {status: sum(run.status == status for arm in study.arms for run in arm.runs)
             for status in ("failed", "diverged")}  # fmt: skip
    left = [f"{amount} {status}" for status, amount in ended.items() if amount]
    noun = "seed" if done == [1] else "seeds"
    arms = f"Each of {plural(len(study.arms), 'arm')}" if len(study.arms) != 1 else "The arm"
    said = f"{arms} has {amount}{planned} finished {noun}; a seed sets the initial parameters and the order of the data"
    said += ", and is the same in every arm." if len(study.arms) != 1 else "."
    return said + (f" Of all runs {listed(left)}; they are in no statistic." if left else "")


def _statistics(study: Study) -> str:
    losses, shares = tested(study, "loss"), tested(study, "retrieval")
    if not any((losses.arms, losses.scalings, shares.arms, shares.scalings)):
        return ""
    said = []
    if losses.arms or shares.arms:
        said.append(
            f"Arms are compared with {comparisons(study)[0].baseline} by the paired differences of equal seeds."
        )
    if losses.scalings or shares.scalings:
        said.append("RoPE scalings, applied at evaluation only, are compared with the trained one in each arm, by the "
                    "paired differences of equal seeds at each length.")  # fmt: skip
    if losses.arms or losses.scalings:
        said.append(f"Differences of losses have {confidence(study)} intervals of Student's t.")
    if shares.arms or shares.scalings:
        said.append(
            "Shares have at each end the wider of Student's t over seeds, on the logit scale, and Wilson's interval"
            f"{_cited(citations.STATISTICS['wilson'])} over the rows of all seeds; differences of shares have the "
            "wider of Student's t over seeds and Newcombe's interval over the rows"
            f"{_cited(citations.STATISTICS['newcombe'])}, at {confidence(study)}."
        )
    said += words.noise(study, lambda key: _cited(citations.STATISTICS[key]))
    said.append(
        f"A difference is called significant if p, after Holm's correction{_cited(citations.STATISTICS['holm'])} over "
        f"the {plural(claims(study).family, 'claim')} of the report, is at most 0.05; intervals are those of single "
        "comparisons."
    )
    if math.isfinite(study.care):
        said.append(f"The smallest difference of losses that matters was set to {study.care:g} nats beforehand.")
    if study.plan:
        looks = ", ".join(map(str, study.plan.looks))
        said.append(
            f"Seeds were added by a plan of looks at {looks} seeds, over which the level is divided; tests and "
            "intervals are at the level of the last complete look."
        )
    return " ".join(said)


def _software(facts: _Facts) -> str:
    parts = []
    for name in VERSIONS:
        versions = facts.recorded("versions", name)
        if versions:
            key = citations.SOFTWARE.get(name)
            parts.append(f"{name} {' and '.join(versions)}{_cited(key) if key else ''}")
    said = f"Runs used {listed(parts)}." if parts else ""
    devices = list(dict.fromkeys(itertools.chain(*map(_devices, facts.runs))))
    commits = [one[:12] for one in facts.recorded("git_commit")]
    said += f" They ran on {listed(devices)}." if devices else ""
    return f"{said} The code's commit is {listed(commits)}.".strip() if commits else said.strip()


def _devices(run: Run) -> list[str]:
    devices = run.info.get("devices")
    given = [mapping(one) for one in devices] if isinstance(devices, list) else []
    return [f"{number(one.get('count')):g} x {text(one.get('kind'))}" for one in given if text(one.get("kind"))]


def markdown(sweep: Sweep) -> str:
    """Returns methods.md: one section per study."""
    parts = []
    for study in sweep.studies:
        said = [f"**{heading}.** {_marked(one)}" for heading, one in paragraphs(study)]
        parts.append("\n\n".join([f"## {formats.markdown(study.title)}", *said]))
    return "\n\n".join(parts) + "\n" if parts else "No studies.\n"


def _marked(said: str) -> str:
    """Returns sentences escaped for Markdown, with citations unchanged."""
    pieces = re.split(r"( \[@[\w;@ -]+\])", said)
    return "".join(one if _CITATION.fullmatch(one) else formats.markdown(f".{one}.")[1:-1] for one in pieces)


def latex(sweep: Sweep) -> str:
    """Returns methods.tex: a paragraph per study and heading, to be included in a paper with references.bib."""
    parts = []
    for study in sweep.studies:
        parts.append(rf"\subsection*{{{formats.latex(study.title)}}}")
        parts += [rf"\paragraph{{{heading}.}} {_tex(said)}" for heading, said in paragraphs(study)]
    return "\n\n".join(parts) + "\n"


def _tex(said: str) -> str:
    pieces = re.split(r"( \[@[\w;@ -]+\])", said)
    results = []
    for one in pieces:
        cited = _CITATION.fullmatch(one)
        keys = ",".join(re.findall(r"@([\w-]+)", one)) if cited else ""
        results.append(rf"~\cite{{{keys}}}" if cited else formats.latex(f".{one}.")[1:-1])
    return "".join(results)


def plain(said: str) -> str:
    """Returns sentences without citations, for the page."""
    return _CITATION.sub("", said)


def bibtex(sweep: Sweep) -> str:
    """Returns references.bib: an entry for each key that the studies' methods cite."""
    said = " ".join(one for study in sweep.studies for _, one in paragraphs(study))
    keys = sorted({key for part in _CITATION.findall(said) for key in re.findall(r"[\w-]+", part)})
    known = citations.entries()
    return "\n\n".join(known[key] for key in keys if key in known) + "\n"
