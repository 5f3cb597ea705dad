"""`paddock image`: OCI images as templates: fetch one, list those that are here, remove some."""

from __future__ import annotations

import argparse

from . import _render
from ._progress import progress
from ._values import add_json

_FORMS = "oci:DIR[:TAG], oci-archive:FILE[:TAG], docker-archive:FILE[:NAME] or docker://HOST/NAME[:TAG][@DIGEST]"


def add(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(title="verbs", metavar="VERB", required=True)
    pull = verbs.add_parser(
        "pull",
        help="fetch one, or what is new of it, and make it a template; prints its digest",
        description=f"Fetches an image and makes it a template: `paddock run --template IMAGE`. IMAGE is {_FORMS}.",
        allow_abbrev=False,
    )
    pull.add_argument("image", metavar="IMAGE")
    add_json(pull)
    pull.set_defaults(run=_pull)
    every = verbs.add_parser("ls", help="which are here", allow_abbrev=False)
    add_json(every)
    every.set_defaults(run=_list)
    remove = verbs.add_parser("rm", help="those that sandboxes live on stay until they end", allow_abbrev=False)
    remove.add_argument("image", nargs="+", metavar="IMAGE", help="as it is listed, or its digest")
    add_json(remove)
    remove.set_defaults(run=_remove)


def _pull(options: argparse.Namespace) -> int:
    from paddock.client import absolute_template, default_transport
    from paddock.model import PullImage

    with progress("fetching the image"):
        image = default_transport().perform(PullImage(reference=absolute_template(options.image)))
    if options.json:
        _render.document(image)
        return 0
    _render.line(image.digest)
    for note in image.notes:
        _render.note(note)
    return 0


def _list(options: argparse.Namespace) -> int:
    from paddock.client import default_transport
    from paddock.model import ListImages

    found = default_transport().perform(ListImages())
    if options.json:
        _render.document(found)
    elif found:
        rows = [
            (one.reference, one.digest[:19], one.user, _size(one.bytes), _render.when(one.pulled_at)) for one in found
        ]
        _render.table(("IMAGE", "DIGEST", "USER", "SIZE", "PULLED"), rows)
    return 0


def _remove(options: argparse.Namespace) -> int:
    from paddock.client import absolute_template, default_transport
    from paddock.model import RemoveImage

    transport = default_transport()
    for image in options.image:
        transport.perform(RemoveImage(image=absolute_template(image)))
    if options.json:
        _render.document(options.image)
    return 0


def _size(count: int | None) -> str:
    return "" if count is None else f"{count / (1 << 20):.1f} MiB"
