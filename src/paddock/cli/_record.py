"""`paddock record`: record the answers to a sandbox's requests as a cassette for a mock."""

from __future__ import annotations

import argparse
from pathlib import Path

from paddock import model

from . import _render
from ._answer import answer, perform
from ._usage import Verbs, argument, usage
from ._values import SANDBOX


@usage(SANDBOX)
def _start(options: argparse.Namespace) -> int:
    """Record from now on."""
    perform(model.StartRecording(sandbox=options.sandbox))
    return answer(options, {"sandbox": options.sandbox})


@usage(SANDBOX, argument("file", metavar="FILE", help="a new one, that ends in .yaml or .json"))
def _take(options: argparse.Namespace) -> int:
    """End it, and write the cassette."""
    from paddock.errors import InvalidArgumentError
    from paddock.policy.network import write_cassette

    file = Path(options.file)
    if file.suffix not in (".yaml", ".yml", ".json"):
        raise InvalidArgumentError(
            f"{options.file!r} is not the name of a cassette", hint="one that ends in .yaml or .json"
        )
    try:
        opened = file.open("x", encoding="utf-8")  # before it is taken: then it is gone from where it was
    except OSError as error:
        raise InvalidArgumentError(f"{options.file!r} cannot be made: {error.strerror}") from None
    with opened:
        try:
            taken = perform(model.TakeRecording(sandbox=options.sandbox))
        except BaseException:
            file.unlink()
            raise
        opened.write(write_cassette(taken.exchanges, as_json=file.suffix == ".json"))
    if options.json:
        _render.document({"exchanges": len(taken.exchanges), "omitted": taken.omitted})
        return 0
    for line in taken.omitted:
        _render.note(f"not recorded: {line}")
    _render.note(f"{len(taken.exchanges)} exchanges in {options.file}")
    return 0


verb_record = Verbs(start=_start, take=_take)
