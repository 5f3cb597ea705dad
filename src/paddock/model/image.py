"""OCI images: the local ones, and the actions on them."""

from __future__ import annotations

from .action import Action
from .value import DatetimeField, Value

LOCAL_IMAGES = ("oci:", "oci-archive:", "docker-archive:")


def is_image(template: str) -> bool:
    """Tell whether the name of a template is the name of an image."""
    return template.startswith(("docker://", *LOCAL_IMAGES))


class Image(Value):
    """An image, from which paddock makes templates.

    `reference` is its name as a template, and `digest` the one of its manifest.

    `user` is the user of its commands here, and `workdir` their working directory. `pulled_at` is in seconds since the
    epoch.
    """

    reference: str
    digest: str
    user: str
    workdir: str
    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    command_workdir: str = "/"
    """The working directory of the image's command."""
    layers: int = 0
    bytes: int | None = None
    """The size of its layers at the source."""
    notes: tuple[str, ...] = ()
    """The differences from the image's own settings, one sentence each."""
    pulled_at: float = 0.0
    pulled = DatetimeField("pulled_at")


class PullImage(Action[Image], tag="image.pull"):
    """Fetch the missing parts of an image, and make a template of it.

    Without `refresh`, an earlier result for the name suffices.
    """

    reference: str
    refresh: bool = True


class ListImages(Action[tuple[Image, ...]], tag="image.list", repeatable=True):
    """Return the local images."""


class RemoveImage(Action[None], tag="image.remove"):
    """Remove an image by its reference, its digest or a unique prefix of that.

    Its sandboxes go on, and keep their files.
    """

    image: str


class TemplateInfo(Value):
    """Describe one of paddock's templates. `state` is `built`, `not built` (its first use builds it) or `missing`.

    `detail` is what is inside, or why this machine can't build it.
    """

    name: str
    state: str
    detail: str


class ListTemplates(Action[tuple[TemplateInfo, ...]], tag="template.list", repeatable=True):
    """Return paddock's own templates. `ListImages` returns images."""
