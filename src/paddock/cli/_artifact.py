"""`paddock artifact`: what is taken out of workspaces and sandboxes and kept on this machine."""

from __future__ import annotations

import argparse
import os
import sys

from . import _render
from ._values import add_json, add_workspace

_CHUNK = 1 << 20


def add(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(title="verbs", metavar="VERB", required=True)
    one = verbs.add_parser("add", help="keep a file, or a directory as a tar archive; prints its SHA-256")
    add_workspace(one)
    one.add_argument("path", metavar="PATH", help="inside")
    one.add_argument("--name", help="default: the last part of PATH")
    add_json(one)
    one.set_defaults(run=_add)
    two = verbs.add_parser("list", help="what is kept")
    two.add_argument("workspace", nargs="?", metavar="TASK", help="only of this one")
    add_json(two)
    two.set_defaults(run=_list)
    three = verbs.add_parser("get", help="write it to stdout or to a new file")
    add_workspace(three)
    three.add_argument("name", metavar="NAME")
    three.add_argument("-o", "--output", metavar="FILE", help="a file that is not there yet")
    add_json(three)
    three.set_defaults(run=_get)
    four = verbs.add_parser("rm", help="keep it no longer")
    add_workspace(four)
    four.add_argument("name", metavar="NAME")
    add_json(four)
    four.set_defaults(run=_remove)


def _add(options: argparse.Namespace) -> int:
    from paddock.client import default_transport
    from paddock.model import AddArtifact

    action = AddArtifact(workspace=options.workspace, path=options.path, name=options.name)
    artifact = default_transport().perform(action)
    if options.json:
        _render.document(artifact)
    else:
        _render.line(artifact.digest)
    return 0


def _list(options: argparse.Namespace) -> int:
    from paddock.client import default_transport
    from paddock.model import ListArtifacts

    found = default_transport().perform(ListArtifacts(workspace=options.workspace))
    if options.json:
        _render.document(found)
    elif found:
        rows = [(a.of, a.name, _render.size(a.size_bytes), a.digest, _render.when(a.created_at)) for a in found]
        _render.table(("OF", "NAME", "SIZE", "SHA-256", "TAKEN"), rows)
    return 0


def _get(options: argparse.Namespace) -> int:
    from paddock.client import default_transport
    from paddock.errors import InvalidArgument
    from paddock.model import GetArtifact

    if options.json and options.output is None:
        raise InvalidArgument("stdout holds the content or a document, not both", hint="-o FILE")
    reader = default_transport().perform(GetArtifact(workspace=options.workspace, name=options.name))
    sys.stdout.flush()
    descriptor = 1
    if options.output is not None:
        descriptor = os.open(options.output, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    try:
        while data := reader.read(_CHUNK):
            _render.raw(descriptor, data)
    finally:
        reader.close()
        if descriptor != 1:
            os.close(descriptor)
    if options.json:
        _render.document({"file": options.output})
    return 0


def _remove(options: argparse.Namespace) -> int:
    from paddock.client import default_transport
    from paddock.model import RemoveArtifact

    default_transport().perform(RemoveArtifact(workspace=options.workspace, name=options.name))
    if options.json:
        _render.document({"removed": options.name})
    return 0
