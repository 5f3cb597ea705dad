"""The package cache on the disk is bounded, and whole or not there at all, whenever its writer is killed."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from paddock.gateway.registries.package_cache import Draft, Entry, PackageStore


def test_what_was_not_used_for_longest_goes_first_and_the_bound_holds(tmp_path: Path) -> None:
    store = PackageStore(tmp_path / "packages", most_bytes=100_000, spare_bytes=0)
    names = [f"https://files.test/{number}" for number in range(7)]
    for name in names[:4]:
        keep(store, name, b"x" * 20_000)
    for name in (names[0], names[1]):
        used(store, name)
    for name in names[4:]:
        keep(store, name, b"x" * 20_000)
        used(store, names[0])
    found = {name for name in names if used(store, name)}
    assert names[0] in found
    assert names[6] in found
    assert not {names[2], names[3]} & found
    assert sum(one.stat().st_size for one in (tmp_path / "packages").iterdir()) <= 100_000
    again = PackageStore(tmp_path / "packages", most_bytes=100_000, spare_bytes=0)
    assert {name for name in names if used(again, name)} == found


def test_who_is_killed_within_a_download_leaves_nothing_that_counts(tmp_path: Path) -> None:
    pid = os.fork()
    if not pid:
        try:
            store = PackageStore(tmp_path / "packages", most_bytes=1 << 20, spare_bytes=0)
            keep(store, "https://files.test/a", b"whole")
            begin(store, "https://files.test/b", b"half").feed(b"ha")
        finally:
            os.kill(os.getpid(), 9)
    os.waitpid(pid, 0)
    assert len(list((tmp_path / "packages").iterdir())) == 2
    store = PackageStore(tmp_path / "packages", most_bytes=1 << 20, spare_bytes=0)
    assert used(store, "https://files.test/a")
    assert not used(store, "https://files.test/b", b"half")
    assert len(list((tmp_path / "packages").iterdir())) == 1


@pytest.mark.parametrize("content", [b"", b"\0\0", b"\xff" * 100, b"\0\0\0\1\xc0" + b"x" * 50])
def test_what_is_no_entry_is_none(content: bytes, tmp_path: Path) -> None:
    store = PackageStore(tmp_path / "packages", most_bytes=1 << 20, spare_bytes=0)
    keep(store, "https://files.test/a", b"x")
    next((tmp_path / "packages").iterdir()).write_bytes(content)
    assert not used(store, "https://files.test/a", b"x")
    assert not list((tmp_path / "packages").iterdir())


def begin(store: PackageStore, url: str, data: bytes) -> Draft:
    entry = Entry(url=url, digest=digest(data), size=len(data), address="192.0.2.1", fields=[])
    return store.begin(entry)


def keep(store: PackageStore, url: str, data: bytes) -> None:
    draft = begin(store, url, data)
    draft.feed(data)
    draft.end()


def used(store: PackageStore, url: str, data: bytes | None = None) -> bool:
    for one in (b"x" * 20_000, b"whole") if data is None else (data,):
        copy = store.find(url, digest(one))
        if copy is not None:
            copy.close()
            return True
    return False


def digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"
