"""Sources of sandboxes: `paddock image`, OCI images as templates, and `paddock template`."""

from __future__ import annotations

import argparse

from paddock import client, model

from . import _render
from ._answer import answer, listing, perform
from ._progress import progress
from ._usage import Verbs, argument, usage

_IMAGE = argument(
    "image",
    metavar="IMAGE",
    help="oci:DIR[:TAG], oci-archive:FILE[:TAG], docker-archive:FILE[:NAME] or docker://HOST/NAME[:TAG][@DIGEST]",
)


@usage(_IMAGE)
def _pull(options: argparse.Namespace) -> int:
    """Fetch the missing parts of an image, and make it a template for `paddock run --template IMAGE`.

    Prints its digest.
    """
    with progress("fetching the image"):
        image = perform(model.PullImage(reference=client.absolute_template(options.image)))
    return answer(options, image, lambda: (_render.line(image.digest), _render.notes(image.notes)))


@usage()
def _list(options: argparse.Namespace) -> int:
    """List which are here."""
    found = perform(model.ListImages())
    headings = ("IMAGE", "DIGEST", "USER", "SIZE", "PULLED")
    return listing(
        options,
        found,
        headings,
        lambda one: (one.reference, one.digest[:19], one.user, _render.size(one.bytes), _render.when(one.pulled_at)),
        "no images: paddock image pull docker://NAME:TAG",
    )


@usage(argument("image", nargs="+", metavar="IMAGE", help="as it is listed, or its digest"))
def _remove(options: argparse.Namespace) -> int:
    """Remove images. Those that sandboxes live on stay until they end."""
    for image in options.image:
        perform(model.RemoveImage(image=client.absolute_template(image)))
    return answer(options, options.image)


@usage()
def _list_templates(options: argparse.Namespace) -> int:
    """List which there are, and images that are here."""
    found = [
        *perform(model.ListTemplates()),
        *(
            model.TemplateInfo(name=one.reference, state="built", detail=f"an image of {_render.size(one.bytes)}")
            for one in perform(model.ListImages())
        ),
    ]
    return listing(options, found, ("TEMPLATE", "STATE", "INSIDE"), lambda one: (one.name, one.state, one.detail))


verb_image = Verbs(pull=_pull, ls=_list, rm=_remove)
verb_template = Verbs(ls=_list_templates)
