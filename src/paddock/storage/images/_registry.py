"""Images of registries."""

from __future__ import annotations

from pathlib import Path

from paddock.errors import Unsupported

from ._reference import Reference
from ._source import Source


def registry(reference: Reference, directory: Path) -> Source:
    raise Unsupported(
        f"{reference.text}: no registry can be asked yet", hint="skopeo copy docker://… oci:DIR:TAG, then oci:DIR:TAG"
    )
