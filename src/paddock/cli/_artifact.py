"""`paddock artifact`: what is taken out of workspaces and sandboxes and kept on this machine."""

from __future__ import annotations

import argparse
import os
import sys

from paddock import client, model

from . import _render
from ._answer import answer, listing, perform
from ._values import Verbs, add_workspace

_CHUNK = 1 << 20


def add_artifact(parser: argparse.ArgumentParser) -> None:
    verbs = Verbs(parser)
    one = verbs.add("add", _add, "keep a file, or a directory as a tar archive; prints its SHA-256")
    add_workspace(one)
    one.add_argument("path", metavar="PATH", help="inside")
    one.add_argument("--name", help="default: the last part of PATH")
    two = verbs.add("list", _list, "what is kept")
    two.add_argument("workspace", nargs="?", metavar="TASK", help="only of this one")
    three = verbs.add("get", _get, "write it to stdout or to a new file")
    add_workspace(three)
    three.add_argument("name", metavar="NAME")
    three.add_argument("-o", "--output", metavar="FILE", help="a file that is not there yet")
    four = verbs.add("rm", _remove, "keep it no longer")
    add_workspace(four)
    four.add_argument("name", metavar="NAME")


def _add(options: argparse.Namespace) -> int:
    action = model.AddArtifact(workspace=options.workspace, path=options.path, name=options.name)
    artifact = perform(action)
    return answer(options, artifact, lambda: _render.line(artifact.digest))


def _list(options: argparse.Namespace) -> int:
    found = perform(model.ListArtifacts(workspace=options.workspace))
    headings = ("OF", "NAME", "SIZE", "SHA-256", "TAKEN")
    return listing(
        options,
        found,
        headings,
        lambda a: (a.of, a.name, _render.size(a.size_bytes), a.digest, _render.when(a.created_at)),
    )


def _get(options: argparse.Namespace) -> int:
    from paddock.errors import InvalidArgument

    if options.json and options.output is None:
        raise InvalidArgument("stdout holds the content or a document, not both", hint="-o FILE")
    reader = client.default_transport().perform(model.GetArtifact(workspace=options.workspace, name=options.name))
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
    return answer(options, {"file": options.output})


def _remove(options: argparse.Namespace) -> int:
    perform(model.RemoveArtifact(workspace=options.workspace, name=options.name))
    return answer(options, {"removed": options.name})
