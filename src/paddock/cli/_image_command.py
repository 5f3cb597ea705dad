"""What `paddock run` runs from an image: as `docker run` does."""

from __future__ import annotations

import argparse

from paddock.errors import InvalidArgument

from ._progress import progress
from ._values import command

TYPE_CHECKING = False
if TYPE_CHECKING:
    from paddock.model import Image

_IMAGES = ("oci:", "oci-archive:", "docker-archive:", "docker://")  # as in `paddock.model`, which `run` does not load


def complete(options: argparse.Namespace) -> None:
    """Puts the image's entrypoint before the command, or its own command in its place. InvalidArgument."""
    if not options.template.startswith(_IMAGES):
        if options.entrypoint is not None:
            raise InvalidArgument(f"template {options.template!r} is no image, and has no entrypoint")
        return
    given = command(options.command)
    if options.entrypoint == "" and given:
        options.command = given
        return
    image = _image(options.template)
    if options.entrypoint is None:
        entrypoint, default = image.entrypoint, image.command
    else:  # with another entrypoint the image's command makes no sense (docker run --entrypoint)
        entrypoint, default = tuple(filter(None, (options.entrypoint,))), ()
    argv = [*entrypoint, *(given or default)]
    if not argv:
        raise InvalidArgument("the image has no command of its own", hint="paddock run --template IMAGE -- COMMAND ...")
    if entrypoint == image.entrypoint and not given and options.cwd is None:
        options.cwd = image.command_workdir
    options.command = argv


def _image(reference: str) -> Image:
    from paddock.client import absolute_template, default_transport
    from paddock.model import PullImage

    with progress("looking at the image"):
        return default_transport().perform(PullImage(reference=absolute_template(reference), refresh=False))
