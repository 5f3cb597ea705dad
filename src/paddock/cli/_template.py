"""`paddock template`: what sandboxes can start from."""

from __future__ import annotations

import argparse

from . import _render
from ._values import add_json


def add(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(title="verbs", metavar="VERB", required=True)
    every = verbs.add_parser("ls", help="which there are; images that are here, too", allow_abbrev=False)
    add_json(every)
    every.set_defaults(run=_list)


def _list(options: argparse.Namespace) -> int:
    from paddock.client import default_transport
    from paddock.model import ListImages, ListTemplates

    transport = default_transport()
    names = [*transport.perform(ListTemplates()), *(image.reference for image in transport.perform(ListImages()))]
    if options.json:
        _render.document(names)
    else:
        for name in names:
            _render.line(_render.escape(name))
    return 0
