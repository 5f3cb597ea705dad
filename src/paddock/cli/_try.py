"""`paddock try`: patches side by side, each in a fork of one warm sandbox."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from paddock.errors import InvalidArgument

from ._judging import add_judging, judge, told

if TYPE_CHECKING:
    from paddock.loop import AsyncCheckout, Comparison, Test

    from ._progress import Progress

_PATCH_BYTES = 16 << 20


def add(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Mounts a directory copy-on-write, sets up once, and forks once per patch: applied there, and judged by the "
        "tests. The best diff goes to stdout, the table to stderr. Exit code 0 if one passes, 1 if none does."
    )
    parser.add_argument("patches", nargs="+", metavar="PATCH", help="a file that `git apply` understands")
    add_judging(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    patches = {name: _read(name) for name in options.patches}

    async def work(checkout: AsyncCheckout, test: Test, shown: Progress) -> Comparison:
        from paddock.loop import acompare

        return await acompare(
            checkout,
            patches,
            test,
            parallel=options.parallel,
            first_passing=options.first,
            on_attempt=told(shown, len(patches)),
        )

    return judge(options, work)


def _read(name: str) -> bytes:
    try:
        with Path(name).open("rb") as file:
            data = file.read(_PATCH_BYTES + 1)
    except OSError as error:
        raise InvalidArgument(f"the patch {name!r} cannot be read: {error.strerror}") from None
    if len(data) > _PATCH_BYTES:
        raise InvalidArgument(f"the patch {name!r} has more than {_PATCH_BYTES} bytes")
    return data
