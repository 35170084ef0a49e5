"""Shows the data of a config: the corpus, the fingerprint, and a row of each source as the model receives it.

python -m data.inspect --config=configs/lm.py --config.data.path='texts/**/*.txt'
"""

if not __package__:  # started by path, so nothing can be imported
    raise SystemExit("error: start it from the checkout as a module: python -m data.inspect")

import json

import numpy as np

from configs import cli, validate
from configs.fields import listing
from configs.rules import tasks
from data import identity, packing, pipeline, shards, sources, streams, tokenizers

SHOWN = 240  # characters of a row


def main(argv: list[str]) -> None:
    """Runs the command."""
    overrides, rest = cli.split_overrides(argv)
    parser = cli.parser(__doc__ or "")
    parser.add_argument("--config", required=True, metavar="FILE", help="a config file; FILE:ARG calls get_config(ARG)")
    parser.epilog = listing.overview("data")
    arguments = parser.parse_args(rest)
    config = validate.resolve(cli.load(arguments.config, overrides))
    corpus = sources.open_data(config.data, config.model.vocab_size) if tasks.reads_text(config) else None
    tokenizer = tokenizers.load(config.data, corpus, config.model.vocab_size) if tasks.has_tokenizer(config) else None
    result = identity.fingerprint(config, corpus, tokenizer)
    for name, value in result.items():
        print(f"{name:18} {value if isinstance(value, str) else json.dumps(value)}")
    text = None
    if corpus is not None:
        text = streams.open_stream(corpus, tokenizer, "train")
        held_out = streams.open_stream(corpus, tokenizer, "validation")
        print(f"{'tokens':18} {len(text):,} train, {len(held_out):,} validation")
        print(f"{'bytes a token':18} {_bytes_per_token(held_out)}")
    for number, stage in enumerate(pipeline.stages(config)):
        steps = "the rest" if stage.steps is None else f"{stage.steps:,} steps"
        print(f"\nstage {number}: {steps}, rows of {stage.length} tokens, {stage.batch_size} a batch")
        for name, source in pipeline.row_sources(config, stage, number, text, tokenizer).items():
            print(f"  {name}: {_row(name, source.rows(0, 1), tokenizer)}")


def _bytes_per_token(stream: streams.Stream) -> str:
    counts = stream.byte_counts
    if counts is not None:
        return f"{counts[:].sum(dtype=np.int64) / len(stream):.3f} (validation)"
    if stream.bytes_per_token is None:
        return "unknown without a tokenizer (data.tokenizer)"
    sampled = f", of {stream.sampled:,} tokens decoded" if isinstance(stream, shards.ShardStream) else ""
    return f"{stream.bytes_per_token:.3f} (validation{sampled})"


def _row(name: str, batch: packing.Batch, tokenizer: tokenizers.Tokenizer | None) -> str:
    tokens, targets, weights = (batch[key][0] for key in ("tokens", "targets", "weights"))
    if name in tasks.IN_TEXT and tokenizer is not None:
        whole = tokenizer.decode(np.append(tokens, targets[-1]))
        return repr(whole if len(whole) <= 2 * SHOWN else f"{whole[:SHOWN]} ... {whole[-SHOWN:]}")
    if name.partition("/")[0] == "text" and tokenizer is not None:
        shown = repr(tokenizer.decode(tokens[weights > 0])[:SHOWN])
        documents = f" ({batch['segments'].max()} pieces)" if "segments" in batch else ""
        return shown + documents
    if name.partition("/")[0] == "text":
        return " ".join(map(str, tokens[weights > 0].tolist()))[:SHOWN]
    # An answer is shown with its question: 7=>40.
    words, end = [], int(np.flatnonzero(weights)[-1]) + 1
    for place in range(end):
        if place and weights[place - 1]:
            continue  # already shown as an answer
        words.append(f"{tokens[place]}" + (f"=>{targets[place]}" if weights[place] else ""))
    line = " ".join(words)
    return line if len(line) <= SHOWN else f"{line[: SHOWN // 2]} ... {line[-SHOWN // 2 :]}"


if __name__ == "__main__":
    cli.main(main)
