"""A segment of many files: closed, packed, removed, and killed at every step of that."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from paddock.audit import (
    AuditLog,
    Cursor,
    HeadSigner,
    RecordFilter,
    SigningKey,
    Stream,
    _heads,
    _log,
    _parts,
    open_key,
    outdated,
    pack,
    read_records,
    verify,
)
from paddock.audit._heads import HEADS
from paddock.errors import UnrecordedError
from paddock.model import ListAudit, WriteFile
from tests.audit.test_log import ME, YES

PART = 2000


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (_log, _heads):
        monkeypatch.setattr(module, "PART_BYTES", PART)


@pytest.fixture
def audit(tmp_path: Path) -> Path:
    return tmp_path / "audit"


@pytest.fixture
def key(tmp_path: Path) -> SigningKey:
    return open_key(tmp_path)


def filled(audit: Path, count: int = 40, *, at: int = 0) -> AuditLog:
    log = AuditLog(audit)
    for number in range(at, at + count):
        log.event("task.failed", message=f"event {number}", text="x" * 100)
    return log


def told(audit: Path) -> list[str]:
    records = read_records(audit, ListAudit(limit=1000))
    return [record.message or "" for record in records if record.action == "task.failed"]


def everything(count: int) -> list[str]:
    return [f"event {number}" for number in range(count)]


def test_a_segment_goes_on_in_another_file_while_its_writer_lives(audit: Path, key: SigningKey) -> None:
    log = filled(audit)
    decision = log.decision(ME, WriteFile(sandbox="sb_1", path="/a"), YES)
    for number in range(40, 80):
        log.event("task.failed", message=f"event {number}", text="x" * 100)
    log.outcome(decision, "file.write", ok=True)
    assert len(_parts.parts(audit)) > 5
    assert all(path.stat().st_size < 2 * PART for path in audit.iterdir())
    assert told(audit) == everything(80)
    (written,) = [record for record in read_records(audit, ListAudit()) if record.action == "file.write"]
    assert written.ok, "an outcome finds its decision, whatever file that is in"
    assert HeadSigner(audit, lambda: key).sign() is not None
    report = verify(audit, [key.public])
    assert (report.ok, report.segments, report.signed) == (True, 1, report.records)
    log.close()


def test_what_is_packed_is_read_as_before(audit: Path, key: SigningKey) -> None:
    filled(audit).close()
    signer = HeadSigner(audit, lambda: key)
    signer.sign()
    before, size = verify(audit), sum(path.stat().st_size for path in audit.iterdir())
    pack(audit)
    assert sum(path.stat().st_size for path in audit.iterdir()) < size / 2
    assert [part.packed for part in _parts.parts(audit)] == [True] * len(_parts.parts(audit))
    assert verify(audit) == before
    assert told(audit) == everything(40)
    log = filled(audit, at=40)
    signer.sign()
    assert told(audit) == everything(80)
    assert verify(audit, [key.public]).ok
    log.close()


def test_a_changed_byte_of_a_closed_part_is_found(audit: Path, key: SigningKey) -> None:
    filled(audit).close()
    HeadSigner(audit, lambda: key).sign()
    part = _parts.parts(audit)[1]
    content = part.path.read_bytes()
    part.path.write_bytes(content.replace(b"event", b"evemt", 1))
    assert not verify(audit).ok
    part.path.write_bytes(content)
    pack(audit)
    packed = part.path.with_name(f"{part.path.name}.gz")
    for damaged in (b"no gzip", packed.read_bytes()[:-20], packed.read_bytes()[:30] + b"x" * 100):
        packed.write_bytes(damaged)
        report = verify(audit)
        assert not report.ok
        assert packed.name in (report.problem or "")


def test_a_reader_goes_on_where_it_was_though_files_were_closed_and_packed_meanwhile(audit: Path) -> None:
    log, cursor = filled(audit, 5), Cursor()
    stream = Stream(audit, RecordFilter(tag="task.failed"), cursor)
    seen = [found.raw for found in stream.in_order()]
    for at in range(5, 60, 5):
        for number in range(at, at + 5):
            log.event("task.failed", message=f"event {number}", text="x" * 100)
        if at % 2:
            pack(audit)
        seen += [found.raw for found in Stream(audit, RecordFilter(tag="task.failed"), cursor).in_order()]
    assert [raw.split(b'"message":"')[1].split(b'"')[0].decode() for raw in seen] == everything(60)
    log.close()


def test_retention_removes_the_oldest_and_a_signed_head_says_so(audit: Path, key: SigningKey) -> None:
    signer = HeadSigner(audit, lambda: key)
    log = filled(audit)
    signer.sign()
    pack(audit)
    remove = outdated(audit, 0, 0.0)
    assert [part.begin for part in remove] == sorted(part.begin for part in remove)
    assert len(remove) == len(_parts.parts(audit)) - 1
    assert outdated(audit, float("inf"), 0.0) == []
    assert outdated(audit, float("inf"), float("inf")) == remove
    signer.sign(remove)
    report = verify(audit, [key.public])
    assert report.ok, report.problem
    (first,) = report.removed.values()
    assert told(audit) == everything(40)[first - 1 :], "the first record is `audit.open`"
    # And again, after more was written; a writer that comes later goes on too.
    log.close()
    log = filled(audit, at=40)
    signer.sign()
    pack(audit)
    signer.sign(outdated(audit, 0, 0.0))
    log.event("task.failed", message="event 80")
    signer.sign()
    report = verify(audit, [key.public])
    assert report.ok, report.problem
    assert [*report.removed.values()] > [first]
    assert report.signed == report.records
    assert told(audit)[-1] == "event 80"
    log.close()


@pytest.mark.parametrize("signed", [True, False])
def test_what_no_signed_head_says_is_removed_is_missed(audit: Path, key: SigningKey, signed: bool) -> None:
    log = filled(audit)
    if signed:
        HeadSigner(audit, lambda: key).sign()
    _parts.parts(audit)[0].path.unlink()
    log.event("audit.removed", parts=[], number=1)  # a writer without the key can say that
    if signed:
        HeadSigner(audit, lambda: key).sign()
    report = verify(audit)
    assert report.problem is not None
    assert "are gone, and no signed head says why" in report.problem
    assert not report.ok
    log.close()


def test_a_part_that_is_missing_in_the_middle_is_found(audit: Path, key: SigningKey) -> None:
    filled(audit).close()
    HeadSigner(audit, lambda: key).sign()
    _parts.parts(audit)[2].path.unlink()
    assert not verify(audit).ok


def test_the_heads_are_closed_packed_and_removed_too(audit: Path, key: SigningKey) -> None:
    signer, log = HeadSigner(audit, lambda: key), AuditLog(audit)
    for number in range(40):
        log.event("task.failed", message=f"event {number}")
        signer.sign()
    assert len(_parts.parts(audit, HEADS)) > 3
    pack(audit)
    assert verify(audit, [key.public]).heads == 40
    signer.sign(outdated(audit, 0, 0.0))
    log.event("task.failed", message="last")
    signer.sign()
    report = verify(audit, [key.public])
    assert report.ok, report.problem
    assert report.heads < 40
    AuditLog(audit).close()  # whose first record names the last head
    assert verify(audit, [key.public]).ok
    _parts.parts(audit, HEADS)[0].file.unlink()
    assert not verify(audit, [key.public]).ok
    log.close()


def test_an_export_of_what_is_left_is_whole(audit: Path, key: SigningKey, tmp_path: Path) -> None:
    from paddock.audit import ExportHeader, head_line, heading_line, record_line, record_prefix

    log = filled(audit)
    signer = HeadSigner(audit, lambda: key)
    signer.sign()
    signer.sign(outdated(audit, 0, 0.0))
    stream = Stream(audit, RecordFilter(), Cursor())
    export = tmp_path / "export"
    with export.open("wb") as file:
        file.write(heading_line(ExportHeader()))
        file.writelines(record_line(record_prefix(found.segment), found.raw) for found in stream.records())
        file.writelines(map(head_line, stream.heads()))
    report = verify(export, [key.public])
    assert report.ok, report.problem
    assert report.removed
    log.close()


class Killed(BaseException):
    pass


CONFINED = """
import sys
from pathlib import Path
from paddock.audit import AuditLog, _log
from paddock.gateway.main import confine
_log.PART_BYTES = 2000
log = AuditLog(Path(sys.argv[1]))
confine(readable=(), writable=(log.directory,))
for number in range(20):
    log.event("egress.world", message="x" * 100)
log.close()
"""


def test_the_gateway_closes_files_too_though_it_is_confined(audit: Path) -> None:
    subprocess.run([sys.executable, "-c", CONFINED, audit], check=True)
    assert len(_parts.parts(audit)) > 2
    assert verify(audit).ok


CALLS = ("rename", "unlink", "open", "utime", "ftruncate", "write", "fdatasync", "fsync")


class Steps:
    """Ends what runs in its block just before the n-th call that changes the directory, and all that come after: who
    is killed undoes nothing."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, step: int) -> None:
        self._monkeypatch, self._left, self.killed = monkeypatch, step, False

    def _call(self, true: Callable[..., object]) -> Callable[..., object]:
        def call(*args: object, **named: object) -> object:
            self._left -= 1
            if self._left <= 0:
                self.killed = True
                raise Killed
            return true(*args, **named)

        return call

    @contextmanager
    def __call__(self) -> Generator[None]:
        with self._monkeypatch.context() as patched, suppress(Killed):
            for name in CALLS:
                patched.setattr(os, name, self._call(getattr(os, name)))
            yield


def copied(audit: Path, to: Path) -> None:
    """What another process would find: with no lock on it, and nothing in the memory of the one that was killed."""
    shutil.rmtree(to, ignore_errors=True)
    shutil.copytree(audit, to)


@pytest.mark.parametrize("what", ["close", "pack", "remove"])
def test_killed_at_any_step_nothing_is_lost_and_it_goes_on(
    what: str, tmp_path: Path, key: SigningKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, left = tmp_path / "made", tmp_path / "left"
    filled(made).close()
    signer = HeadSigner(made, lambda: key)
    signer.sign()
    if what == "remove":
        pack(made)
    work = tmp_path / "work"
    logs: list[AuditLog] = []

    def run() -> None:
        if what == "close":
            for number in range(40, 60):
                logs[-1].event("task.failed", message=f"event {number}", text="x" * 100)
        elif what == "pack":
            pack(work)
        else:
            HeadSigner(work, lambda: key).sign(outdated(work, 0, 0.0))

    step = 0
    for step in range(1, 10_000):
        copied(made, work)
        logs.append(AuditLog(work))
        steps = Steps(monkeypatch, step)
        with steps():
            run()
        if not steps.killed:
            break
        copied(work, left)
        report = verify(left, [key.public])
        assert report.ok, (step, report.problem)
        kept = told(left)
        if what == "remove":
            assert kept == everything(40)[-len(kept) :]
        else:
            assert kept[:40] == everything(40), step
            assert kept == everything(len(kept)), step
        log = AuditLog(left)
        log.event("task.failed", message=f"event {len(kept)}" if what == "close" else "event 40")
        HeadSigner(left, lambda: key).sign()
        pack(left)
        report = verify(left, [key.public])
        assert report.ok, (step, report.problem)
        log.close()
    assert step > 5


def test_a_disk_without_room_for_another_file_lets_the_segment_grow(
    audit: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    log = filled(audit, 2)
    with monkeypatch.context() as patched:
        patched.setattr(_log, "close_part", full)
        for number in range(2, 40):
            log.event("task.failed", message=f"event {number}", text="x" * 100)
    assert _parts.parts(audit) == []
    log.event("task.failed", message="event 40")
    assert len(_parts.parts(audit)) == 1
    assert told(audit) == everything(41)
    assert verify(audit).ok
    log.close()


def test_two_writers_never_share_a_file_that_one_of_them_closes(audit: Path) -> None:
    """A lock on a file that has another name by now is none on the segment."""
    first, second = filled(audit, 5), filled(audit, 0)
    for number in range(5, 40):
        first.event("task.failed", message=f"event {number}", text="x" * 100)
        second.event("egress.world", message="x" * 100)
    assert first.segment != second.segment
    report = verify(audit)
    assert (report.ok, report.segments) == (True, 2)
    for log in (first, second):
        log.close()
    with pytest.raises(UnrecordedError):
        first.event("task.failed")
