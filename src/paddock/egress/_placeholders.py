"""What a sandbox has in the place of a secret: random, of its shape where one is given, dead elsewhere. Pure."""

from __future__ import annotations

import re
import secrets
import string

from paddock.errors import InvalidArgument

DEFAULT_SHAPE = "pdk_" + "*" * 40
LEAST_RANDOM = 24
_ALPHABET = string.ascii_letters + string.digits
# Of what no encoding of a URL, of JSON or of a form changes.
_SHAPE = re.compile(r"[A-Za-z0-9._~*-]{24,256}")


def mint(shape: str | None = None) -> str:
    """A new one: each `*` of the shape is a random letter or digit."""
    shape = DEFAULT_SHAPE if shape is None else shape
    check_shape(shape)
    return "".join(secrets.choice(_ALPHABET) if character == "*" else character for character in shape)


def check_shape(shape: str) -> None:
    if not _SHAPE.fullmatch(shape) or shape.count("*") < LEAST_RANDOM:
        raise InvalidArgument(
            f"{shape[:256]!r} is no shape of a placeholder: letters, digits, `-`, `.`, `_`, `~`, and {LEAST_RANDOM} or"
            " more `*` for those that are to be random",
            hint=f"ghp_{'*' * 36}",
            field="shape",
        )
