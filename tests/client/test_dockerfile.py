"""A snapshot from a Dockerfile: what each instruction does, and which line an error names."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from paddock import CommandFailedError, Limits, Sandbox, Snapshot
from paddock.client._dockerfile import Dockerfile
from paddock.errors import (
    AlreadyExistsError,
    InvalidArgumentError,
    InvalidStateError,
    NotFoundError,
    PaddockError,
    UnsupportedError,
)

WHOLE = """\
# syntax=docker/dockerfile:1
ARG BASE=host
FROM ${BASE} AS built
ARG VERSION=1
ENV APP=/opt/app "NOTE=two words" PATH=/opt/app/bin:$PATH
USER root
WORKDIR $APP
COPY requirements.txt ./
COPY ["tools", "bin"]
RUN echo "$VERSION $NOTE" > version \\
    # a comment between
    && chown -R user .
USER user
EXPOSE 80
CMD ["tool"]
"""


def _context(directory: Path, text: str) -> Path:
    (directory / "Dockerfile").write_text(text)
    (directory / "requirements.txt").write_text("six\n")
    (directory / "tools").mkdir()
    (directory / "tools" / "tool").write_text("#!/bin/sh\necho $NOTE\n")
    (directory / "tools" / "tool").chmod(0o755)
    (directory / "tools" / "left.pyc").write_text("")
    (directory / ".dockerignore").write_text("*.pyc\n")
    return directory


@pytest.mark.root  # `USER root`
def test_sandboxes_from_it_have_its_files_variables_directory_and_user(shared_state: Path, tmp_path: Path) -> None:
    snapshot = Snapshot.build(_context(tmp_path, WHOLE), name="tools", args={"VERSION": "2"}, network=["pypi"])
    try:
        with Sandbox.create(snapshot="tools") as sandbox:
            assert sandbox.exec("pwd; id -un; tool; cat version; ls").stdout.splitlines() == [
                *("/opt/app", "user", "two words", "2 two words", "bin", "requirements.txt", "version")
            ]
            assert not sandbox.files.exists("bin/left.pyc")
            assert sandbox.policy is None  # the build's network is the build's
            with sandbox.fork() as child:
                assert child.exec("pwd; tool").stdout == "/opt/app\ntwo words\n"
            sandbox.files.remove("version")
            sandbox.rollback(snapshot)
            assert sandbox.files.exists("version")
    finally:
        snapshot.delete()


USER_OF_ITS_OWN = """\
FROM host
USER root
RUN echo app:x:1234:1235::/opt/home:/bin/sh >>/etc/passwd && install -d -o app -g 1235 /opt/home /opt/app
WORKDIR /opt/app
USER app
COPY requirements.txt .
RUN touch "$HOME/made"
"""


@pytest.mark.root  # `USER root`
def test_a_user_that_a_run_has_added_is_the_user_of_the_snapshot(shared_state: Path, tmp_path: Path) -> None:
    snapshot = Snapshot.build(_context(tmp_path, USER_OF_ITS_OWN))
    with Sandbox.create(snapshot=snapshot) as sandbox:
        assert sandbox.exec("id -u; id -g; echo $HOME $USER; stat -c %U ~/made requirements.txt").stdout.split() == [
            *("1234", "1235", "/opt/home", "app", "app", "root")  # COPY is by root, as with Docker
        ]
        sandbox.files.write("own", "x")
        assert sandbox.files.stat("own").uid == 1234
        assert sandbox.exec("id -u", user="root").stdout == "0\n"
        assert sandbox.exec("id -u; id -g", user="4321").stdout.split() == ["4321", "0"]
        with pytest.raises(NotFoundError, match="no user 'nobody-here' in /etc/passwd"):
            sandbox.exec("id", user="nobody-here")
        sandbox.exec("ln -sf /dev/zero /etc/passwd", user="root", check=True)
        with pytest.raises(NotFoundError):
            sandbox.exec("id", user="nobody-here")
    snapshot.delete()


@pytest.mark.user
def test_a_user_that_a_run_has_added_needs_ids(shared_state: Path, tmp_path: Path) -> None:
    text = "FROM host\nRUN mkdir -p ~/x\nUSER root\nRUN id\n"
    with pytest.raises(UnsupportedError, match=r"^Dockerfile:4: nothing can be done as 'root'"):
        Snapshot.build(_context(tmp_path, text))
    (tmp_path / "Dockerfile").write_text("FROM host\nRUN chown root .\n")
    with pytest.raises(CommandFailedError, match=r"^Dockerfile:2: ") as failed:
        Snapshot.build(tmp_path)
    assert "subordinate_ids = true" in (failed.value.hint or "")


def test_a_sandbox_from_one_takes_directories_of_the_host(shared_state: Path, tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / "a").write_text("one\n")
    tools = Snapshot.build(_context(tmp_path, "FROM host\nRUN echo tool > ~/tool\n"))
    with Sandbox.create(snapshot=tools, mounts=[str(project)]) as sandbox:
        assert sandbox.exec("cat ~/tool a; echo two >>a").stdout == "tool\none\n"
        assert [change.path for change in sandbox.diff_mount().changes] == ["a"]
        later = sandbox.snapshot()
        with Sandbox.create(snapshot=later) as other:
            assert other.files.read_text("a") == "one\ntwo\n"
        with pytest.raises(InvalidArgumentError, match="has mounts, and what was written in them"):
            Sandbox.create(snapshot=later, mounts=[str(tmp_path)])
        with pytest.raises(InvalidStateError, match="other mounts"):
            sandbox.rollback(tools)
    assert (project / "a").read_text() == "one\n"
    later.delete()
    tools.delete()


def test_a_name_moves_to_the_newest_build(shared_state: Path, tmp_path: Path) -> None:
    old = Snapshot.build(_context(tmp_path, "FROM host\nRUN echo old >made\n"), name="moves")
    (tmp_path / "Dockerfile").write_text("FROM host\nRUN echo new >made; false\n")
    with pytest.raises(CommandFailedError):
        Snapshot.build(tmp_path, name="moves")
    assert Snapshot.get("moves").id == old.id
    (tmp_path / "Dockerfile").write_text("FROM host\nRUN echo new >made\n")
    new = Snapshot.build(tmp_path, name="moves")
    assert new.name == "moves"
    names = {one.id: one.name for one in Snapshot.list()}
    assert (names[old.id], names[new.id]) == (None, "moves")
    for snapshot, made in (("moves", "new\n"), (old.id, "old\n")):
        with Sandbox.create(snapshot=snapshot) as sandbox:
            assert sandbox.files.read_text("made") == made
            with pytest.raises(AlreadyExistsError):  # a name that is given by hand stays where it is
                sandbox.snapshot("moves")
    old.delete()
    new.delete()


def test_the_level_without_isolation_builds_nothing(shared_state: Path, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="process"):
        Snapshot.build(_context(tmp_path, "FROM host\n"), level="process")


def test_a_full_disk_is_named_with_its_line(shared_state: Path, tmp_path: Path) -> None:
    before, limits = Snapshot.list(), Limits(disk_mib=16)
    for line in ("COPY large .", "RUN head -c 40000000 /dev/zero >large"):
        context = tmp_path / line[:3]
        context.mkdir()
        (context / "large").write_bytes(os.urandom(40 << 20))
        (context / "Dockerfile").write_text(f"FROM host\n{line}\n")
        with pytest.raises(PaddockError, match=r"^Dockerfile:2: .*(?i:disk|space)"):
            Snapshot.build(context, limits=limits)
    assert Snapshot.list() == before


def test_an_ordinary_snapshot_takes_variables_a_directory_and_a_user(shared_state: Path) -> None:
    with Sandbox.create() as base:
        snapshot = base.snapshot(env={"A": "1"}, workdir="/tmp", user="user")
        with pytest.raises(PaddockError, match="no user 'nobody-here' in /etc/passwd of"):
            base.snapshot(user="nobody-here")
        with pytest.raises(InvalidArgumentError, match="absolute"):
            base.snapshot(workdir="sub")
    with Sandbox.create(snapshot=snapshot) as sandbox:
        assert sandbox.exec("echo $A; pwd").stdout == "1\n/tmp\n"
    with pytest.raises(NotFoundError, match="no snapshot 'sn_'"):  # all ids begin so, even if there is one alone
        Sandbox.create(snapshot="sn_")
    snapshot.delete()


def test_an_image_that_is_missing_is_named_with_its_line(shared_state: Path, tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"^Dockerfile:2: there is no image layout"):
        Snapshot.build(_context(tmp_path, "ARG A\nFROM oci:/nowhere\n"))


def test_a_command_that_fails_is_named_with_its_line(shared_state: Path, tmp_path: Path) -> None:
    before = Snapshot.list()
    with pytest.raises(CommandFailedError, match=r"^Dockerfile:2: 'exit 3' exited with 3"):
        Snapshot.build(_context(tmp_path, "FROM host\nRUN exit 3\n"))
    assert Snapshot.list() == before


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("RUN true\n", "1: RUN stands before FROM"),
        ("ARG A\n", "1: there is no FROM"),
        ("FROM a\n\nADD x y\n", "3: ADD isn't supported"),
        ("FROM a\nFROM b\n", "2: a second FROM"),
        ("FROM a\nRUN --mount=type=cache,target=/c true\n", "2: options of RUN"),
        ("FROM a\nRUN <<EOF\ntrue\nEOF\n", "2: options of RUN"),
        ("FROM a\nCOPY --from=b x y\n", "2: COPY has no option '--from=b'"),
        ("FROM a\nCOPY nothing y\n", "2: COPY finds no 'nothing'"),
        ("FROM a\nCOPY ../x y\n", "2: .*x leads out of"),
        ("FROM a\nCOPY key y\n", "2: .*key leads out of"),
        ("FROM a\nENV A\n", "2: "),
        ("FROM a\nENV A='$B'\n", "2: a \\$ that stands for itself"),
        ("FROM a\nENV A='x\n", "2: No closing quotation"),
        ("FROM a\nNONSENSE\n", "2: NONSENSE isn't supported"),
    ],
)
def test_what_cannot_be_done_is_named_with_its_line(text: str, said: str, tmp_path: Path) -> None:
    context = tmp_path / "context"
    context.mkdir()
    (tmp_path / "x").write_text("")
    (tmp_path / "secret").write_text("of the host")
    (context / "key").symlink_to(tmp_path / "secret")
    (context / "Dockerfile").write_text(text)
    with pytest.raises(InvalidArgumentError, match=f"^Dockerfile:{said}"):
        _read(Dockerfile(context, "Dockerfile", {}))


def _read(file: Dockerfile) -> None:
    file.image()
    list(file.steps())


def test_a_bad_name_is_refused_before_anything_is_built(shared_state: Path, tmp_path: Path) -> None:
    seen: list[str] = []
    with pytest.raises(InvalidArgumentError, match="name 'bad name' is not allowed"):
        Snapshot.build(_context(tmp_path, "FROM host\nRUN echo ran\n"), name="bad name", on_output=seen.append)
    assert seen == []
