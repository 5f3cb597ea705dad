"""OCI images: what is here of them, and what can be asked."""

from __future__ import annotations

from .action import Action
from .value import Moment, Value

LOCAL_IMAGES = ("oci:", "oci-archive:", "docker-archive:")


def is_image(template: str) -> bool:
    """Whether the name of a template is one of an image."""
    return template.startswith(("docker://", *LOCAL_IMAGES))


class Image(Value):
    """An image that templates are made of. `reference` is what names it as a template, `digest` that of its manifest.

    `user` is who its commands run as here, `workdir` where they start. `pulled_at` is in seconds since the epoch.
    """

    reference: str
    digest: str
    user: str
    workdir: str
    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    command_workdir: str = "/"
    """Where its own command starts."""
    layers: int = 0
    bytes: int | None = None
    """Of its layers, as they lay at the source."""
    notes: tuple[str, ...] = ()
    """What of it is not so here, one sentence each."""
    pulled_at: float = 0.0
    pulled = Moment("pulled_at")


class PullImage(Action[Image], tag="image.pull"):
    """Fetches an image, or only what is not here, and makes it a template. Without `refresh`, what was found under
    that name before is good enough."""

    reference: str
    refresh: bool = True


class ListImages(Action[tuple[Image, ...]], tag="image.list", repeatable=True):
    """Those that are here."""


class RemoveImage(Action[None], tag="image.remove"):
    """By its reference, its digest or a unique prefix of that. What lives on it goes on, and keeps its files."""

    image: str


class TemplateInfo(Value):
    """A template that comes with paddock. `state` is `built`, `not built` (its first use builds it) or `missing`.

    `detail` is what is inside, or why this machine can't build it.
    """

    name: str
    state: str
    detail: str


class ListTemplates(Action[tuple[TemplateInfo, ...]], tag="template.list", repeatable=True):
    """Those that come with paddock; images are listed by `ListImages`."""
