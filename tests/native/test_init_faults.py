"""The n-th system call of pid 1's start fails, for every n: it is refused, or complete. No host waits for ever."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Protocol

import pytest

from paddock.linux import seccomp_profile
from paddock.wire.guest import Exec, IdentityFlags, Op
from tests.native.driver import Ended, GuestError, build_module
from tests.native.test_init import USER, Container
from tests.native.test_led import DATA, GREETING, OPEN, Sentry
from tests.orphans import PATIENCE_SECONDS, command_line, processes, wait_until

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="pid 1 takes identities, for which the test has to be root")
STEP = 9
ERRORS = [errno.ENOMEM, errno.EIO]
MOST = 70
"""More calls than pid 1 and its first agent make until that listens. The agent's further ones: test_guest_faults.py."""
FILTER = seccomp_profile.build(os.uname().machine, owners=True)
SHOWS = r"""
grep -E '^(Uid|Gid|Groups|Cap|NoNewPrivs|Seccomp:)' /proc/self/status
ulimit -Ha | grep -v '^memory'; cat /proc/self/oom_score_adj; echo all
"""
REFUSED = (GuestError, Ended, BrokenPipeError, ConnectionResetError)


@pytest.fixture(scope="session")
def faulty() -> Path:
    return build_module().build(sanitize=True, faults=True)


def in_the_end(ask: Callable[[], bytes]) -> bytes:
    """The first answer: an agent that ended at its start is followed by another."""
    answers: list[bytes] = []

    def answered() -> bool:
        with suppress(REFUSED):
            answers.append(ask())
        return bool(answers)

    assert wait_until(answered, seconds=PATIENCE_SECONDS), "no agent serves"
    return answers[0]


class FaultySentry(Sentry):
    """Pid 1 behind gVisor's sentry, whose start is complete. The constructor raises what refuses it."""

    def __init__(self, program: Path, place: Path, words: str) -> None:
        super().__init__(program, place, words)
        self._place, self._connections, self._shown = place, 1, place / "shown"
        try:
            self.greet()
            self.begin()
        except BaseException:
            self.close()
            raise

    def whole(self) -> list[bytes]:
        return [in_the_end(self._user)]

    def _user(self) -> bytes:
        self._connections += 1
        self.say(OPEN, self._connections, b"user")
        self.say(DATA, self._connections, GREETING)
        script = f"({SHOWS}) > {self._shown}.part; mv {self._shown}.part {self._shown}"
        request = Exec(id=b"%d" % self._connections, argv=(b"/bin/sh", b"-c", script.encode()), cwd=b"/", umask=0o22)
        self.ask(self._connections, 1, Op.EXEC, request.pack())
        assert wait_until(self._shown.exists)
        return self._shown.read_bytes()

    def close(self) -> None:
        self.stop()
        assert wait_until(lambda: not any(str(self._place) in command_line(pid) for pid in processes()))


class FaultyContainer(Container):
    """Pid 1 of a container, whose start is complete. The constructor raises what refuses it."""

    def __init__(self, program: Path, place: Path, words: str) -> None:
        super().__init__(program, place, words + "guest")
        try:
            self.identity("user", USER, IdentityFlags.EAGER, filter=FILTER)
            self.identity("root", 0)
            self.begin(rlimits=(7, 77))
        except BaseException:
            self.close()
            raise

    def whole(self) -> list[bytes]:
        return [in_the_end(lambda name=name: self._shown(name)) for name in ("user", "root")]

    def _shown(self, identity: str) -> bytes:
        host = self.connect(identity)
        try:
            done = host.sh(SHOWS, id=os.urandom(8).hex().encode())
            if not done.out.endswith(b"all\n"):  # a call of the agent's has failed
                raise Ended
            return done.out
        finally:
            host.close()


class Faulty(Protocol):
    def whole(self) -> list[bytes]:
        """What its agents show."""
        ...

    def close(self) -> None: ...


KINDS = [FaultyContainer, FaultySentry]
Kind = Callable[[Path, Path, str], Faulty]
Start = Callable[[Path, str], Faulty]


def fail_each(start: Start, place: Path, numbers: range, error: int) -> None:
    def attempt(number: int) -> list[bytes] | None:
        (place / str(number)).mkdir()
        try:
            started = start(place / str(number), f"init {number} {error} ")
        except REFUSED:
            return None
        try:
            return started.whole()
        finally:
            started.close()

    expected = attempt(0)
    assert expected is not None
    refused = 0
    for number in numbers:
        found = attempt(number)
        assert found in (None, expected), f"with call {number} failing"
        refused += found is None
    assert refused > len(numbers) // 5


@pytest.mark.parametrize("error", ERRORS, ids=lambda number: errno.errorcode[number])
@pytest.mark.parametrize("kind", KINDS)
def test_pid_1_is_whole_or_refused_if_a_system_call_of_its_start_fails(
    kind: Kind, error: int, faulty: Path, tmp_path: Path
) -> None:
    fail_each(partial(kind, faulty), tmp_path, range(1 + error % STEP, MOST, STEP), error)


@pytest.mark.slow
@pytest.mark.parametrize("error", [*ERRORS, errno.EPERM], ids=lambda number: errno.errorcode[number])
@pytest.mark.parametrize("kind", KINDS)
def test_pid_1_is_whole_or_refused_if_any_system_call_of_its_start_fails(
    kind: Kind, error: int, faulty: Path, tmp_path: Path
) -> None:
    fail_each(partial(kind, faulty), tmp_path, range(1, MOST), error)
