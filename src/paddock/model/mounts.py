"""Directories of the host inside a sandbox."""

from __future__ import annotations

from enum import StrEnum

from .value import Value


class MountMode(StrEnum):
    """COPY_ON_WRITE: what is written stays in the sandbox. READ_WRITE changes the host's own files at once."""

    COPY_ON_WRITE = "cow"
    READ_ONLY = "ro"
    READ_WRITE = "rw"


class Mount(Value, forbid_unknown_fields=True):
    """The directory `source` of the host (absolute), seen at `target`.

    Inside, the files of the directory's owner belong to the template's default user; those of others to nobody.
    """

    source: str
    target: str = "/workspace"
    mode: MountMode = MountMode.COPY_ON_WRITE
