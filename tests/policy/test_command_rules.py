"""Which commands may be asked for: of a line, all that it starts; and nothing is started that was not told of."""

from __future__ import annotations

import fcntl
import os
import subprocess
import tempfile
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paddock.errors import PolicyInvalidError
from paddock.model.policy import CommandRule, CommandRules
from paddock.policy.commands import Commands
from paddock.policy.commands._shell import MOST_CHARACTERS, read_argv, read_line
from paddock.policy.network import diff, load


def rule(*prefix: str | tuple[str, ...]) -> CommandRule:
    return CommandRule(prefix=prefix)


FORBIDDING = Commands(
    CommandRules(deny=(rule("rm", ("-r", "-rf")), rule("git", "push")), approve=(rule("pip"),), allow=(rule("ls"),))
)
CLOSED = Commands(CommandRules(default="deny", unclear="deny", allow=(rule("git", ("status", "diff")), rule("pytest"))))


@pytest.mark.parametrize(
    ("line", "verdict", "by"),
    [
        ("ls", "allow", "commands.allow[0]"),
        ("make", "allow", "commands.default"),
        ("rm -rf /", "deny", "commands.deny[0]"),
        ("rm -f x", "allow", "commands.default"),
        ("/bin/rm -rf /", "deny", "commands.deny[0]"),
        ("r\\m -'rf' /", "deny", "commands.deny[0]"),
        ("ls && git push", "deny", "commands.deny[1]"),
        ("ls; pip install x | rm -r y", "deny", "commands.deny[0]"),
        ("pip install x && ls", "approve", "commands.approve[0]"),
        ("ls\ngit push", "deny", "commands.deny[1]"),
        ("ls & git push", "deny", "commands.deny[1]"),
        ("sh -c 'sh -c \"git push\"'", "deny", "commands.deny[1]"),
        ("bash -eo pipefail -c 'ls | git push'", "deny", "commands.deny[1]"),
        ("echo 'git push; rm -rf /' # && rm -rf /", "allow", "commands.default"),
        ("git $WHAT", "approve", "commands.unclear"),
        ("rm $FLAGS", "approve", "commands.unclear"),
        ("rm -rf $X", "deny", "commands.deny[0]"),
        ("$X -rf /", "approve", "commands.unclear"),
        ("echo $(git push)", "approve", "commands.unclear"),
        ("echo `git push`", "approve", "commands.unclear"),
        ("cat <(git push)", "approve", "commands.unclear"),
        ("cat <<E\ngit push\nE", "approve", "commands.unclear"),
        ("eval git push", "approve", "commands.unclear"),
        ("X=1 git push", "approve", "commands.unclear"),
        ("if true; then git push; fi", "approve", "commands.unclear"),
        ("f() { git push; }; f", "approve", "commands.unclear"),
        ("env git push", "approve", "commands.unclear"),
        ("find . -name x", "allow", "commands.default"),
        ("find . -exec rm -rf {} +", "approve", "commands.unclear"),
        ("ls &> out rm -rf /", "approve", "commands.unclear"),
        ("[ -v 'a[$(rm -rf /)]' ]", "approve", "commands.unclear"),
        ("'ls", "approve", "commands.unclear"),
        ("", "allow", "commands"),
    ],
)
def test_the_strictest_of_what_a_line_starts_counts(line: str, verdict: str, by: str) -> None:
    found = FORBIDDING.judge_line(line)
    assert (found.verdict, found.rule) == (verdict, by)
    assert FORBIDDING.judge(["/bin/sh", "-c", line]) == found
    assert FORBIDDING.judge(["bash", "-lc", "-e", line]) == found


@pytest.mark.parametrize(
    "argv",
    [
        ["sh", "-c"],
        ["sh"],
        ["sh", "-s", "x"],
        ["sh", "-c", "--", "ls"],
        ["bash", "+e", "-c", "ls"],
        ["bash", "-oc", "posix", "ls"],
        ["bash", "--rcfile", "x"],
        ["zsh", "-c", "ls"],
        ["env", "ls"],
    ],
)
def test_words_that_do_not_tell_what_is_run_are_unclear(argv: list[str]) -> None:
    assert FORBIDDING.judge(argv).rule == "commands.unclear"


def test_what_only_some_are_allowed_is_not_allowed_under_their_name() -> None:
    assert CLOSED.judge(["git", "status"]).verdict == "allow"
    assert CLOSED.judge(["sh", "-c", "git status && pytest -x"]).verdict == "allow"
    for argv in (["git", "push"], ["./git", "status"], ["/tmp/pytest"], ["sh", "-c", "git status; x"], ["git", "-C"]):
        assert CLOSED.judge(argv).verdict == "deny", argv
    assert CLOSED.judge(["git", "status"], {"PATH": "/tmp"}).rule == "commands.unclear"
    assert CLOSED.judge(["git", "status"], {"LD_PRELOAD": "/tmp/x"}).rule == "commands.unclear"
    assert CLOSED.judge(["git", "status"], {"COLOUR": "no"}).verdict == "allow"


def test_examples_are_looked_at_when_the_document_is() -> None:
    good = {"prefix": ["rm", ["-r", "-rf"]], "match": ["rm -rf x", "ls; rm -r y"], "not_match": ["rm x", "echo rm -r"]}
    assert load({"commands": {"deny": [good]}}).document.commands is not None
    for key, example in (("match", "rm -fr x"), ("not_match", "ls && rm -r x")):
        with pytest.raises(PolicyInvalidError, match="such"):
            load({"commands": {"deny": [{**good, key: [example]}]}})
    with pytest.raises(PolicyInvalidError, match="words"):
        load({"commands": {"deny": [{"prefix": []}]}})


def test_a_document_without_them_has_the_revision_that_it_always_had_and_a_change_is_told() -> None:
    without, empty = load({"version": 1}), load({"commands": {"deny": [{"prefix": ["rm"]}]}})
    assert b"commands" not in without.snapshot.to_bytes()
    assert without.snapshot.revision != empty.snapshot.revision
    (change,) = diff(without.snapshot, empty.snapshot)
    assert (change.kind, change.where) == ("changed", "commands")
    assert "rm" in change.note


def test_no_line_is_too_much() -> None:
    assert read_line("a" * (MOST_CHARACTERS + 1)).unclear is not None
    assert read_line("a\0b").unclear is not None
    assert len(read_line("a;" * 30_000).commands) == 30_000
    nested = "git push"
    for _ in range(6):
        nested = f"sh -c {_quoted(nested)}"
    assert FORBIDDING.judge_line(nested).verdict == "deny"


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


# -- against real shells

_PROGRAMS = ("aa", "bb", "cc")
_OPERATORS = (
    ";",
    "&",
    "&&",
    "|",
    "||",
    "|&",
    "\n",
    ">",
    "<",
    ">&",
    "2>",
    "&>",
    "(",
    ")",
    "{",
    "}",
    "!",
    "#",
    "\t",
    "=",
)
_QUOTES = ("'", '"', "\\", "\\\n", "$", "$X", "${X}", "`", "~", "*", "[", "]", "-", "x", "1", "@", ":", "%", ",", "X=")
_WORDS = ("sh -c ", "bash -c ", "eval ", "exec ", "set ", "-e ", "if ", "then ", "fi", "case ", "in ", "esac")
_PIECES = st.sampled_from([*_PROGRAMS * 3, *[" "] * 3, *_OPERATORS, *_QUOTES, *_WORDS])
_STUB = '#!/bin/sh\nprintf "%s\\n" "${0##*/}" >>"$SAID"\n'


@pytest.fixture(scope="module")
def stubs() -> Generator[Path]:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        for program in _PROGRAMS:
            (directory / program).write_text(_STUB)
            (directory / program).chmod(0o755)
        for shell in ("sh", "bash"):
            (directory / shell).symlink_to(f"/bin/{shell}")
        yield directory


def started(shell: str, line: str, stubs: Path) -> set[str]:
    """The programs that a real shell starts for it, and those that these start."""
    with tempfile.TemporaryDirectory() as place:
        said = Path(place) / "said"
        said.touch()
        reader, writer = os.pipe()
        high = fcntl.fcntl(writer, fcntl.F_DUPFD_CLOEXEC, 200)  # which no line can name
        os.close(writer)
        with subprocess.Popen(
            [shell, "-c", line],
            env={"PATH": str(stubs), "X": "aa", "SAID": str(said)},
            cwd=place,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=(high,),
        ):
            os.close(high)
            with os.fdopen(reader, "rb") as end:
                end.read()  # of the last that was started
        return set(said.read_text().split())


@pytest.mark.parametrize("shell", ["/bin/dash", "/bin/bash"])
@settings(deadline=None)
@given(pieces=st.lists(_PIECES, min_size=1, max_size=14))
def test_whatever_a_shell_starts_was_told_of(shell: str, pieces: list[str], stubs: Path) -> None:
    if not Path(shell).exists():
        pytest.skip(f"there is no {shell} here")
    line = "".join(pieces)
    read = read_argv(["sh", "-c", line])
    if read.unclear is None:
        told = {one.words[0].rpartition("/")[2] for one in read.commands if one.words}
        assert started(shell, line, stubs) <= told
