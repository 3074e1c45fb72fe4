"""``mpicoll generate``: text from a trained model."""

from __future__ import annotations

import codecs
import sys
from typing import Annotated

import typer

from mpicoll.cli import output
from mpicoll.cli.errors import UsageError, reading, usage
from mpicoll.cli.options import Best, Json, Run

#: A model of text knows bytes.
_BYTES = 256


def command(
    run: Run,
    prompt: Annotated[str, typer.Option(metavar="TEXT", help="Text to continue.")],
    tokens: Annotated[int, typer.Option(min=0, metavar="N", help="Bytes to generate.")] = 256,
    temperature: Annotated[
        float, typer.Option(help="Randomness: below 1 favours likely bytes; 0 takes the likeliest.")
    ] = 0.8,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the random draws.")] = 0,
    best: Best = False,
    json: Json = False,
) -> int:
    """Continue a prompt with a model that was trained on text.

    The same model, prompt, temperature and seed give the same text.
    """
    from mpicoll.train import threads

    # Before anything loads NumPy.
    threads.limit_blas_threads()
    from mpicoll.train import generate, load_model
    from mpicoll.train.models.generation import vocabulary

    with reading():
        model, parameters, buffers = load_model(run, best)
    with usage():
        known = vocabulary(model)
        if known != _BYTES:
            raise UsageError(
                f"the model of {run} knows {known} tokens, and a text is {_BYTES} different bytes: "
                "call mpicoll.train.generate with tokens of your own"
            )
        written = prompt.encode("utf-8", "surrogateescape")
        found = generate(model, {**parameters, **buffers}, written, tokens, temperature, seed)
    text = codecs.getincrementaldecoder("utf-8")("replace")
    if json:
        with usage():
            made = bytes(found)
        facts = {"prompt": prompt, "text": text.decode(made, final=True), "bytes": list(made)}
        output.facts(facts)
        return 0
    sys.stdout.write(prompt)
    with usage():
        for token in found:
            sys.stdout.write(text.decode(bytes([token])))
            sys.stdout.flush()
    output.text(text.decode(b"", final=True))
    return 0
