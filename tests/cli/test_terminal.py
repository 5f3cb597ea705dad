"""`paddock sh`, as a person meets it: on a real terminal, in real sandboxes."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Generator
from pathlib import Path

import pytest

from paddock.cli._terminal import Escapes, Order
from tests.cli.screen import Screen, screen
from tests.conftest import SandboxFactory
from tests.orphans import wait_until

PROMPT = "$ "


@pytest.fixture
def box(sandbox: SandboxFactory) -> str:
    return sandbox(persistent=True, ttl_seconds=120).id


@pytest.fixture
def shell(box: str) -> Generator[Screen]:
    with screen("sh", box) as shown:
        shown.expect(PROMPT)
        yield shown


def answer(shown: Screen, line: str) -> str:
    """What a line prints. (Its own echo holds no `[`.)"""
    shown.type(f"echo; printf %s '{'['}'; {line}; printf %s ']'\r")
    shown.expect("\n[")
    return shown.expect("]")[:-1].decode().strip()


def test_the_size_and_the_kind_of_the_terminal_are_those_outside(shell: Screen) -> None:
    assert answer(shell, "stty size") == "30 90"
    assert answer(shell, "echo $TERM") == "xterm-256color"
    shell.resize(44, 133)
    shell.type("until [ \"$(stty size)\" = '44 133' ]; do :; done; echo grown $((1+1))\r")
    shell.expect("grown 2")


def test_control_c_ends_the_command_and_not_the_shell(shell: Screen) -> None:
    shell.type("sh -c 'echo be$((1+1))gun; exec sleep 60'\r")
    shell.expect("be2gun")
    shell.type("\x03")
    shell.expect(PROMPT)
    shell.type("echo =$?=\r")
    shell.expect("=130=")


def test_control_z_stops_the_command_inside(shell: Screen) -> None:
    shell.type("sh -c 'echo be$((1+1))gun; read x; echo got:$x'\r")
    shell.expect("be2gun")
    shell.type("\x1a")
    shell.expect("Stopped")
    shell.expect(PROMPT)
    shell.type("fg\r")
    shell.expect("got:$x'\r\n")  # after it bash reads no more
    shell.type("word\r")
    shell.expect("got:word")


@pytest.mark.parametrize(("typed", "code"), [("exit 7\r", 7), ("\x04", 0), ("kill -9 $$\r", 137)])
def test_the_shells_end_is_ours(shell: Screen, typed: str, code: int) -> None:
    assert shell.is_raw
    shell.type(typed)
    assert shell.ends() == code
    assert shell.is_as_it_was


def test_a_large_paste_arrives_whole(shell: Screen) -> None:
    text = b"".join(b"%06d %s\n" % (n, b"x" * 60) for n in range(4000))
    shell.type("stty -echo; echo be$((1+1))gun; cat > pasted; echo do$((1+1))ne\r")
    shell.expect("be2gun")
    shell.type(text.replace(b"\n", b"\r"))
    shell.type("\x04")
    shell.expect("do2ne")
    shell.type("stty echo\r")
    assert answer(shell, "sha256sum < pasted").split()[0] == hashlib.sha256(text).hexdigest()


def test_an_editor_edits(shell: Screen) -> None:
    shell.type("vi note\r")
    shell.expect("~")
    shell.type("iwritten in vi\x1b")
    shell.type(":wq\r")
    shell.expect(PROMPT)
    assert answer(shell, "cat note") == "written in vi"


def test_what_a_shell_leaves_in_the_background_lives_on(shell: Screen, box: str) -> None:
    shell.type("setsid sleep 61 </dev/null >/dev/null 2>&1 & disown\r")
    shell.type("until pgrep -x sleep; do :; done; echo le$((1+1))ft\r")  # in a session of its own by now
    shell.expect("le2ft")
    shell.type("exit\r")
    assert shell.ends() == 0
    assert paddock("exec", box, "--", "pgrep", "-f", "sleep 61").returncode == 0


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGINT, 130)])
def test_a_signal_gives_the_terminal_back(shell: Screen, number: int, code: int) -> None:
    shell.process.send_signal(number)
    assert shell.ends() == code
    assert shell.is_as_it_was


def test_a_sandbox_that_is_killed_under_it_gives_the_terminal_back_and_says_why(shell: Screen, box: str) -> None:
    assert paddock("kill", box).returncode == 0
    assert shell.ends() == 125
    assert shell.is_as_it_was
    assert b"\r\npaddock: sandbox " in shell.shown
    assert b"killed" in shell.shown


def test_a_service_that_breaks_gives_the_terminal_back(shell: Screen, box: str) -> None:
    # The agent is not to be killed from inside; from outside its connection ends in the middle of the session.
    state = Path(os.environ["PADDOCK_STATE_DIR"], "run", box, "state.json")
    os.kill(json.loads(state.read_text())["pid"], signal.SIGKILL)
    assert shell.ends() == 125
    assert shell.is_as_it_was
    assert b"\r\npaddock: " in shell.shown


def test_a_stop_from_outside_gives_the_terminal_back_until_it_goes_on(shell: Screen) -> None:
    shell.process.send_signal(signal.SIGTSTP)
    _, status = os.waitpid(shell.process.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status)
    assert shell.is_as_it_was
    shell.process.send_signal(signal.SIGCONT)
    assert wait_until(lambda: shell.is_raw)
    assert answer(shell, "echo still here") == "still here"


def test_a_tilde_and_a_dot_end_a_session_that_hears_nothing(shell: Screen) -> None:
    shell.type("trap '' INT TERM HUP; exec sleep 60\r")
    shell.expect("\n")
    shell.type("~.")
    assert shell.ends() == 137
    assert shell.is_as_it_was


def test_run_has_a_terminal_too(sandbox: SandboxFactory) -> None:
    sandbox()  # skips where there is none to be had
    with screen("run", "-t", "--", "sh", "-c", "tty; read x; echo got:$x; exit 6") as shown:
        shown.expect("/dev/pts/")
        shown.type("it\r")
        shown.expect("got:it")
        assert shown.ends() == 6
        assert shown.is_as_it_was


def test_without_a_terminal_a_shell_reads_its_commands_and_t_is_refused(box: str) -> None:
    done = paddock("sh", box, input="tty; echo out; echo err >&2; exit 3")
    assert (done.stdout, done.stderr, done.returncode) == ("not a tty\nout\n", "err\n", 3)
    refused = paddock("exec", "-t", box, "--", "true")
    assert refused.returncode == 125
    assert "-t needs a terminal" in refused.stderr
    assert "leave out -t" in refused.stderr


def paddock(*arguments: str, input: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "paddock", *arguments], input=input, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(
    ("typed", "parts"),
    [
        ([b"ls\r~."], [b"ls\r", Order.END]),
        ([b"~", b"."], [Order.END]),
        ([b"a~.\r"], [b"a~.\r"]),
        ([b"~~.\r"], [b"~.\r"]),
        ([b"~x~.\r"], [b"~x~.\r"]),
        ([b"~/bin\r~\x1a~?x"], [b"~/bin\r", Order.SUSPEND, Order.HELP, b"x"]),
    ],
)
def test_orders_are_found_at_the_beginning_of_a_line_only(typed: list[bytes], parts: list[bytes | Order]) -> None:
    escapes = Escapes()
    split: Callable[[bytes], list[bytes | Order]] = escapes.split
    assert [part for data in typed for part in split(data)] == parts
