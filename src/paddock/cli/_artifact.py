"""`paddock artifact`: files from workspaces and sandboxes that paddock keeps on this machine."""

from __future__ import annotations

import argparse
import os
import sys

from paddock import client, model

from . import _render
from ._answer import answer, listing, perform
from ._usage import Verbs, argument, usage
from ._values import WORKSPACE

_CHUNK = 1 << 20
_NAME = argument("name", metavar="NAME")


@usage(
    WORKSPACE,
    argument("path", metavar="PATH", help="inside"),
    argument("--name", help="default: the last part of PATH"),
)
def _add(options: argparse.Namespace) -> int:
    """Keep a file, or a directory as a tar archive. Prints its SHA-256."""
    artifact = perform(model.AddArtifact(workspace=options.workspace, path=options.path, name=options.name))
    return answer(options, artifact, lambda: _render.line(artifact.digest))


@usage(argument("workspace", nargs="?", metavar="TASK", help="only of this one"))
def _list(options: argparse.Namespace) -> int:
    """List the artifacts."""
    found = perform(model.ListArtifacts(workspace=options.workspace))
    return listing(
        options,
        found,
        ("OF", "NAME", "SIZE", "SHA-256", "TAKEN"),
        lambda a: (a.of, a.name, _render.size(a.size_bytes), a.digest, _render.when(a.created_at)),
        "no artifacts: paddock artifact add TASK PATH",
    )


@usage(WORKSPACE, _NAME, argument("-o", "--output", metavar="FILE", help="a file that is not there yet"))
def _get(options: argparse.Namespace) -> int:
    """Write it to stdout or to a new file."""
    from paddock.errors import InvalidArgumentError

    if options.json and options.output is None:
        raise InvalidArgumentError("stdout holds the content or a document, not both", hint="-o FILE")
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


@usage(WORKSPACE, _NAME)
def _remove(options: argparse.Namespace) -> int:
    """Keep it no longer."""
    perform(model.RemoveArtifact(workspace=options.workspace, name=options.name))
    return answer(options, {"removed": options.name})


verb_artifact = Verbs(add=_add, list=_list, get=_get, rm=_remove)
