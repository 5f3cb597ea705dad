from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddock.linux import mountinfo

# As fs/proc_namespace.c writes paths: blank, tab, newline, backslash as octal digits ("#" in sources too).
ESCAPED = {b: b"\\%03o" % b for b in b" \t\n\\#"}


def mangle(path: bytes) -> bytes:
    return b"".join(ESCAPED.get(b, bytes((b,))) for b in path)


paths = st.binary(min_size=1, max_size=40).filter(lambda b: b"\0" not in b).map(lambda b: b"/" + b)


@given(
    root=paths, point=paths, source=paths, tags=st.lists(st.sampled_from(["shared:1", "master:2", "-x"]), max_size=3)
)
def test_every_path_is_read_back(root: bytes, point: bytes, source: bytes, tags: list[str]) -> None:
    optional = b"".join(b" " + tag.encode() for tag in tags)
    line = b"36 35 98:0 %s %s rw,noatime%s - ext3 %s rw,errors=continue" % (
        mangle(root),
        mangle(point),
        optional,
        mangle(source),
    )
    mount = mountinfo.parse(line)
    assert (mount.root, mount.mount_point, mount.source) == (root, point, source)
    assert mount.fstype == "ext3"
    assert mount.options == {"rw", "noatime"}


@pytest.mark.parametrize("line", [b"", b"1 2 3:4 / / rw", b"1 2 3:4 / / rw - proc"])
def test_what_is_no_line_of_mountinfo_is_refused(line: bytes) -> None:
    with pytest.raises(ValueError):
        mountinfo.parse(line)


def test_this_process_sees_its_root() -> None:
    assert [mount for mount in mountinfo.read() if mount.mount_point == b"/"]
