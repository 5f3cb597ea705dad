"""A batch request of git LFS is a download only where no server can read anything else in it."""

from __future__ import annotations

import json

import pytest

from paddock.gateway.rules.git import MOST_BATCH_BYTES, is_download

KIND = (b"Content-Type", b"application/vnd.git-lfs+json; charset=utf-8")
OBJECT = {"oid": "1" * 64, "size": 3}
DOWNLOAD = json.dumps({"operation": "download", "transfers": ["basic"], "objects": [OBJECT]}).encode()


def test_what_git_lfs_sends_to_fetch_is_a_download() -> None:
    assert is_download([KIND], DOWNLOAD)
    assert is_download([(b"content-type", b"application/vnd.git-lfs+json")], DOWNLOAD)


@pytest.mark.parametrize(
    "body",
    [
        DOWNLOAD.replace(b"download", b"upload"),
        DOWNLOAD.replace(b"download", b"DOWNLOAD"),
        DOWNLOAD.replace(b'"operation"', b'"Operation"'),
        DOWNLOAD.replace(b"{", b'{"operation": "upload", ', 1),
        DOWNLOAD.replace(b"{", b'{"Operation": "upload", ', 1),
        DOWNLOAD.replace(b"{", b'{"\\u006fperation": "upload", ', 1),
        b"[" + DOWNLOAD + b"]",
        b"\xef\xbb\xbf" + DOWNLOAD,
        DOWNLOAD.decode().encode("utf-16"),
        DOWNLOAD[:-1],
        DOWNLOAD + DOWNLOAD,
        b'{"operation": "download"}',
        b'{"operation": ["download"], "objects": []}',
        b"[" * 100_000,
        b"",
        json.dumps({"operation": "download", "objects": [OBJECT] * 1001}).encode(),
        DOWNLOAD + b" " * MOST_BATCH_BYTES,
    ],
)
def test_everything_else_is_not(body: bytes) -> None:
    assert not is_download([KIND], body)


@pytest.mark.parametrize(
    "fields",
    [
        [],
        [(b"Content-Type", b"application/x-www-form-urlencoded")],
        [(b"Content-Type", b"application/vnd.git-lfs+json; charset=utf-7")],
        [KIND, KIND],
        [KIND, (b"Content-Encoding", b"gzip")],
        [KIND, (b"Content_Encoding", b"identity")],
        [KIND, (b"content_type", b"text/plain")],
    ],
)
def test_a_body_that_its_fields_give_another_meaning_is_not(fields: list[tuple[bytes, bytes]]) -> None:
    assert not is_download(fields, DOWNLOAD)
