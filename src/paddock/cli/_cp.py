"""`paddock cp`: files and trees between here and a sandbox."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING

from paddock.errors import InvalidArgument

from . import _render
from ._values import add_json

if TYPE_CHECKING:
    from paddock.client import Filesystem


def add(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "One of both is ID:PATH. A directory that comes out is made new, and holds nothing that leads out."
    )
    parser.add_argument("source", metavar="SOURCE", help="a local path, or ID:PATH")
    parser.add_argument("target", metavar="TARGET", help="a local path, or ID:PATH")
    parser.add_argument("--skip-unsafe", action="store_true", help="pass over what would lead out, instead of failing")
    add_json(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    from paddock import Sandbox

    source, target = _inside(options.source), _inside(options.target)
    if (source is None) == (target is None):
        raise InvalidArgument("exactly one of both must be ID:PATH", hint="paddock cp FILE ID:/workspace/FILE")
    if target is not None:
        skipped = _into(Sandbox.connect(target[0]).filesystem, options.source, target[1])
    else:
        assert source is not None
        skipped = _out_of(Sandbox.connect(source[0]).filesystem, source[1], options.target, options.skip_unsafe)
    if options.json:
        _render.document({"skipped": skipped})
    else:
        for name in skipped:
            _render.note(f"passed over: {name}")
    return 0


def _into(files: Filesystem, source: str, path: str) -> tuple[str, ...]:
    if os.path.isdir(source):
        return files.upload(source, path).skipped
    files.write_from(path, source, mode=os.stat(source).st_mode & 0o777)
    return ()


def _out_of(files: Filesystem, path: str, target: str, skip_unsafe: bool) -> tuple[str, ...]:
    from paddock.model import FileKind

    if files.stat(path, follow=True).kind is FileKind.DIRECTORY:
        return files.download(path, target, skip_unsafe=skip_unsafe).skipped
    if os.path.isdir(target):
        target = os.path.join(target, os.path.basename(path))
    files.read_to(path, target)
    return ()


def _inside(text: str) -> tuple[str, str] | None:
    """A local path with a colon in it is written with a slash before that: ./a:b."""
    sandbox, colon, path = text.partition(":")
    return (sandbox, path or ".") if colon and sandbox and "/" not in sandbox else None
