"""From what a caller writes to the policy that is asked for."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    import os
    from collections.abc import Mapping
    from typing import Any, TypeAlias

    from paddock.model import PolicyDocument

    PolicySource: TypeAlias = str | os.PathLike[str] | Mapping[str, Any] | PolicyDocument
    """A path to a `paddock.yaml`, its text (which has a line break), plain values, or a document."""


def policy_document(source: PolicySource | None) -> PolicyDocument | None:
    """PolicyInvalid, with line and column where there is a text."""
    if source is None:
        return None
    from paddock.model import PolicyDocument
    from paddock.policy.egress import load

    return source if isinstance(source, PolicyDocument) else load(source).document
