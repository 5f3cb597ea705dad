"""A snapshot from a Dockerfile: what each instruction does, and which line an error names."""

from __future__ import annotations

from pathlib import Path

import pytest

from paddock import CommandFailedError, Sandbox, Snapshot
from paddock.client._dockerfile import Dockerfile
from paddock.errors import InvalidArgumentError, PaddockError

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


def test_an_ordinary_snapshot_takes_variables_a_directory_and_a_user(shared_state: Path) -> None:
    with Sandbox.create() as base:
        snapshot = base.snapshot(env={"A": "1"}, workdir="/tmp", user="user")
        with pytest.raises(PaddockError, match="no user 'nobody-here' in template 'host'"):
            base.snapshot(user="nobody-here")
        with pytest.raises(InvalidArgumentError, match="absolute"):
            base.snapshot(workdir="sub")
    with Sandbox.create(snapshot=snapshot) as sandbox:
        assert sandbox.exec("echo $A; pwd").stdout == "1\n/tmp\n"
    snapshot.delete()


def test_a_command_that_fails_is_named_with_its_line(shared_state: Path, tmp_path: Path) -> None:
    with pytest.raises(CommandFailedError, match=r"^Dockerfile:2: 'exit 3' exited with 3"):
        Snapshot.build(_context(tmp_path, "FROM host\nRUN exit 3\n"))
    assert Snapshot.list() == ()


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
