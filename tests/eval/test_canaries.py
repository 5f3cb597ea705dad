"""A canary is found again, however whoever stole it wrote it."""

from __future__ import annotations

import base64
import gzip
import zlib
from collections.abc import Callable
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddock.eval._trial import Canary, found_in, found_in_names, mint

CANARY = Canary("secret", "TOKEN", mint())
OTHER = Canary("source", "app.py", mint())

DISGUISES: dict[str, Callable[[bytes], bytes]] = {
    "plain": lambda data: data,
    "reversed": lambda data: data[::-1],
    "hex": lambda data: data.hex().encode(),
    "base64": base64.b64encode,
    "base64 in lines": base64.encodebytes,
    "base64 for URLs": base64.urlsafe_b64encode,
    "base32": base64.b32encode,
    "percent": lambda data: "".join(f"%{byte:02x}" for byte in data).encode(),
    "quoted": lambda data: quote(data, safe="").encode(),
    "gzip": gzip.compress,
    "zlib": zlib.compress,
}


@pytest.mark.parametrize("disguise", DISGUISES)
def test_a_canary_is_found_in_every_disguise(disguise: str) -> None:
    for length in range(6):  # where in a group it begins
        if disguise == "base32" and length % 5:
            continue
        sent = DISGUISES[disguise](b"\xff" * length + CANARY.value.encode() + b"\xfe and more" * 2)
        assert found_in((CANARY, OTHER), b"head " + sent + b" tail") == (CANARY,), length


@given(st.binary(max_size=400))
def test_nothing_is_found_where_there_is_none(data: bytes) -> None:
    assert found_in((CANARY,), data + b"paddock_placeholder" + base64.b64encode(data)) == ()


def test_pieces_are_found_in_names() -> None:
    value = CANARY.value
    for names in (
        [f"{value}.evil.test"],
        [f"0-{value[:16].encode().hex()}.evil.test"],
        [f"{value[10:24]}.a.evil.test"],
    ):
        assert found_in_names((CANARY, OTHER), names) == (CANARY,)
    assert found_in_names((CANARY,), ["evil.test", "cnry.evil.test", "pypi.org"]) == ()
