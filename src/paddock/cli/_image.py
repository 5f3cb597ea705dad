"""What sandboxes can start from: `paddock image`, OCI images as templates, and `paddock template`."""

from __future__ import annotations

import argparse

from paddock import client, model

from . import _render
from ._answer import answer, listing, perform
from ._progress import progress
from ._values import Verbs

_FORMS = "oci:DIR[:TAG], oci-archive:FILE[:TAG], docker-archive:FILE[:NAME] or docker://HOST/NAME[:TAG][@DIGEST]"


def add_image(parser: argparse.ArgumentParser) -> None:
    verbs = Verbs(parser)
    pull = verbs.add(
        "pull",
        _pull,
        "fetch one, or what is new of it, and make it a template; prints its digest",
        f"Fetches an image and makes it a template: `paddock run --template IMAGE`. IMAGE is {_FORMS}.",
    )
    pull.add_argument("image", metavar="IMAGE")
    verbs.add("ls", _list, "which are here")
    remove = verbs.add("rm", _remove, "those that sandboxes live on stay until they end")
    remove.add_argument("image", nargs="+", metavar="IMAGE", help="as it is listed, or its digest")


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
    verbs = Verbs(parser)
    verbs.add("ls", _list_templates, "which there are; images that are here, too")


def _list_templates(options: argparse.Namespace) -> int:
    names = [*perform(model.ListTemplates()), *(image.reference for image in perform(model.ListImages()))]
    return answer(options, names, lambda: _render.lines(names))
