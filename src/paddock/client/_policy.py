"""From what a caller writes to the policy that is asked for."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, TypeAlias

from paddock.model import PolicyDocument

PolicySource: TypeAlias = str | os.PathLike[str] | Mapping[str, Any] | PolicyDocument
"""A path to a `paddock.yaml`, its text (which has a line break), plain values, or a document."""


def policy_document(source: PolicySource | None) -> PolicyDocument | None:
    """PolicyInvalid, with line and column where there is a text."""
    if source is None or isinstance(source, PolicyDocument):
        return source
    from paddock.policy.egress import load

    return load(source).document
