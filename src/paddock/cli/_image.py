"""What sandboxes can start from: `paddock image`, OCI images as templates, and `paddock template`."""

from __future__ import annotations

import argparse

from paddock import client, model

from . import _render
from ._answer import answer, listing, perform
from ._progress import progress
from ._values import add_json

_FORMS = "oci:DIR[:TAG], oci-archive:FILE[:TAG], docker-archive:FILE[:NAME] or docker://HOST/NAME[:TAG][@DIGEST]"


def add_image(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(title="verbs", metavar="VERB", required=True)
    pull = verbs.add_parser(
        "pull",
        help="fetch one, or what is new of it, and make it a template; prints its digest",
        description=f"Fetches an image and makes it a template: `paddock run --template IMAGE`. IMAGE is {_FORMS}.",
        allow_abbrev=False,
    )
    pull.add_argument("image", metavar="IMAGE")
    add_json(pull, _pull)
    every = verbs.add_parser("ls", help="which are here", allow_abbrev=False)
    add_json(every, _list)
    remove = verbs.add_parser("rm", help="those that sandboxes live on stay until they end", allow_abbrev=False)
    remove.add_argument("image", nargs="+", metavar="IMAGE", help="as it is listed, or its digest")
    add_json(remove, _remove)


def _pull(options: argparse.Namespace) -> int:
    with progress("fetching the image"):
        image = perform(model.PullImage(reference=client.absolute_template(options.image)))
    return answer(options, image, lambda: (_render.line(image.digest), _render.notes(image.notes)))


def _list(options: argparse.Namespace) -> int:
    found = perform(model.ListImages())
    headings = ("IMAGE", "DIGEST", "USER", "SIZE", "PULLED")
    return listing(
        options,
        found,
        headings,
        lambda one: (one.reference, one.digest[:19], one.user, _size(one.bytes), _render.when(one.pulled_at)),
    )


def _remove(options: argparse.Namespace) -> int:
    for image in options.image:
        perform(model.RemoveImage(image=client.absolute_template(image)))
    return answer(options, options.image)


def _size(count: int | None) -> str:
    return "" if count is None else f"{count / (1 << 20):.1f} MiB"


def add_template(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(title="verbs", metavar="VERB", required=True)
    every = verbs.add_parser("ls", help="which there are; images that are here, too", allow_abbrev=False)
    add_json(every, _list_templates)


def _list_templates(options: argparse.Namespace) -> int:
    names = [*perform(model.ListTemplates()), *(image.reference for image in perform(model.ListImages()))]
    return answer(options, names, lambda: _render.lines(names))
