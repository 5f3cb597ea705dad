"""What leaves the machine: whole, in parts, from a cursor on; and what its reader can tell from it alone."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from paddock.audit import (
    AuditLog,
    Cursor,
    ExportHeader,
    HeadSigner,
    RecordFilter,
    SigningKey,
    Stream,
    cursor_of,
    head_line,
    heading_line,
    open_key,
    read_cursor,
    record_line,
    record_prefix,
    verify,
)
from paddock.errors import InvalidArgumentError
from paddock.model import AuditReport


@pytest.fixture
def key(tmp_path: Path) -> SigningKey:
    return open_key(tmp_path, {})


@pytest.fixture
def audit(tmp_path: Path) -> Path:
    return tmp_path / "audit"


def write(log: AuditLog, sandbox: str, number: int) -> None:
    for n in range(number):
        of = log.verdict("egress.dial", allowed=True, rule="r", reason="", sandbox=sandbox, detail={"flow": n})
        log.outcome(of, "egress", ok=True, detail={"sent": n, "received": n})


def exported(stream: Stream, choice: RecordFilter, *, resumed: bool = False) -> bytes:
    lines = [heading_line(ExportHeader(filtered=not choice.everything, resumed=resumed))]
    lines += [record_line(record_prefix(found.segment), found.raw) for found in stream.records()]
    lines += map(head_line, stream.heads())
    return b"".join(lines)


def export(audit: Path, choice: RecordFilter = RecordFilter(), cursor: Cursor | None = None) -> bytes:  # noqa: B008 (a frozen value)
    return exported(Stream(audit, choice, cursor or Cursor()), choice, resumed=cursor is not None)


def check(tmp_path: Path, data: bytes, key: SigningKey) -> AuditReport:
    path = tmp_path / "export.jsonl"
    path.write_bytes(data)
    return verify(path, [key.public])


def test_an_export_holds_the_log_byte_for_byte_and_proves_it_alone(
    tmp_path: Path, audit: Path, key: SigningKey
) -> None:
    logs = [AuditLog(audit) for _ in range(3)]
    for log in logs:
        write(log, "sb_1", 3)
        log.event("name", text="\x7f\u202e\udc80")
    HeadSigner(audit, lambda: key).sign()
    report = check(tmp_path, export(audit), key)
    there = verify(audit, [key.public])
    assert report.ok, report.problem
    assert (report.records, report.signed, report.head, report.part) == (
        there.records,
        there.records,
        there.head,
        False,
    )
    for log in logs:
        log.close()


@pytest.mark.parametrize("what", ["edit", "delete", "reorder", "cut"])
def test_what_was_done_to_an_export_is_named(tmp_path: Path, audit: Path, key: SigningKey, what: str) -> None:
    log = AuditLog(audit)
    write(log, "sb_1", 5)
    HeadSigner(audit, lambda: key).sign()
    log.close()
    lines = export(audit).splitlines(keepends=True)
    match what:
        case "edit":
            lines[4] = lines[4].replace(b'"flow":1', b'"flow":9')
        case "delete":
            del lines[4]
        case "reorder":
            lines[4:6] = lines[5], lines[4]
        case _:
            del lines[4:-1]
    report = check(tmp_path, b"".join(lines), key)
    assert report.fault is not None
    assert (report.fault.segment, report.fault.seq) == (log.segment, 3)


def test_a_part_is_told_as_one_and_only_what_hangs_together_counts_as_signed(
    tmp_path: Path, audit: Path, key: SigningKey
) -> None:
    log = AuditLog(audit)
    write(log, "sb_1", 2)
    write(log, "sb_2", 2)
    HeadSigner(audit, lambda: key).sign()
    log.event("later")
    part = export(audit, RecordFilter(sandboxes=("sb_2",)))
    report = check(tmp_path, part, key)
    assert (report.ok, report.part, report.gaps) == (True, True, 1)
    assert (report.records, report.signed) == (4, 4), "outcomes come with their decisions"
    first = check(tmp_path, export(audit, RecordFilter(sandboxes=("sb_1",))), key)
    assert (first.ok, first.records, first.signed) == (True, 4, 0), "what follows them to the signature was left out"
    lines = part.splitlines(keepends=True)
    report = check(tmp_path, b"".join([*lines[:2], lines[2].replace(b'"sent":0', b'"sent":7'), *lines[3:]]), key)
    assert report.fault is not None
    assert report.fault.seq == 6
    log.close()


def test_exports_of_one_cursor_put_together_are_the_whole(tmp_path: Path, audit: Path, key: SigningKey) -> None:
    log, other = AuditLog(audit), AuditLog(audit)
    signer, cursor, whole = HeadSigner(audit, lambda: key), Cursor(), b""
    for turn in range(4):
        write(log, "sb_1", turn)
        write(other, "sb_2", 1)
        signer.sign()
        stream = Stream(audit, RecordFilter(), cursor)
        piece = exported(stream, RecordFilter(), resumed=turn > 0)
        whole += piece
        cursor = read_cursor(stream.cursor.text())
    assert check(tmp_path, whole, key).head == verify(audit).head
    last = check(tmp_path, piece, key)
    assert (last.ok, last.part) == (True, True), "the last alone is a part"
    log.close()
    other.close()


def test_a_cursor_keeps_what_outcomes_are_waited_for(audit: Path) -> None:
    log, choice = AuditLog(audit), RecordFilter(sandboxes=("sb_1",))
    of = log.verdict("egress.dial", allowed=True, rule="r", reason="", sandbox="sb_1", detail={})
    stream = Stream(audit, choice, Cursor())
    assert len(list(stream.records())) == 1
    log.outcome(of, "egress", ok=True)
    log.outcome(0, "egress", ok=True)
    again = Stream(audit, choice, read_cursor(stream.cursor.text()))
    assert [found.record and found.record.of for found in again.records()] == [of]
    with pytest.raises(InvalidArgumentError):
        read_cursor("!")
    log.close()


def test_an_export_beside_writers_and_signers_is_whole(tmp_path: Path, audit: Path, key: SigningKey) -> None:
    """Whatever it vouches for is in it, though others write, open segments and sign meanwhile."""
    first, signer = AuditLog(audit), HeadSigner(audit, lambda: key)
    signer.sign()

    def busy() -> None:
        for _ in range(60):
            log = AuditLog(audit)
            first.event("first")
            log.event("other")
            signer.sign()
            log.close()

    threads = [threading.Thread(target=busy) for _ in range(2)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        report, there = check(tmp_path, export(audit), key), verify(audit)
        assert report.ok, report
        assert there.ok, there
    first.close()
    assert verify(audit).records > 300


def test_a_head_that_was_signed_after_the_records_were_read_is_left_for_the_next_export(
    tmp_path: Path, audit: Path, key: SigningKey
) -> None:
    log, signer, stream = AuditLog(audit), HeadSigner(audit, lambda: key), Stream(audit, RecordFilter(), Cursor())
    signer.sign()
    records = [record_line(record_prefix(found.segment), found.raw) for found in stream.records()]
    log.event("later")
    signer.sign()
    data = b"".join([heading_line(ExportHeader()), *records, *map(head_line, stream.heads())])
    report = check(tmp_path, data, key)
    assert (report.ok, report.heads, report.records) == (True, 1, 1), report
    assert len(list(stream.records())) == len(list(stream.heads())) == 1
    log.close()


def test_what_a_record_vouches_for_is_in_the_export_though_it_was_written_meanwhile(
    tmp_path: Path, audit: Path, key: SigningKey
) -> None:
    first = AuditLog(audit)
    HeadSigner(audit, lambda: key).sign()

    class Late(Stream):
        """Between the looks at two segments one grows, and the other begins and vouches for that."""

        def _ends(self) -> list[tuple[str, int]]:
            found = super()._ends()
            if len(found) > 1:
                return found
            first.event("meanwhile")
            second = AuditLog(audit)
            second.close()
            return [*found, (second.segment, (audit / second.segment).stat().st_size)]

    report = check(tmp_path, exported(Late(audit, RecordFilter(), Cursor()), RecordFilter()), key)
    assert (report.ok, report.segments, report.records) == (True, 2, 4), report
    first.close()


def test_junk_is_a_finding_not_a_crash(tmp_path: Path, key: SigningKey) -> None:
    for junk in (
        b"",
        b"\n",
        b"{}\n",
        b'{"cursor":"x"}\n',
        b'{"segment":1,"record":{}}\n',
        b'{"head":{}}\n',
        b"\xff" * 99,
    ):
        report = check(tmp_path, junk, key)
        assert not report.ok, junk


def test_a_filter_by_action_kind_and_time(audit: Path) -> None:
    times = iter(range(10**9, 10**12, 10**9))
    log = AuditLog(audit, wall=lambda: next(times))
    write(log, "sb_1", 1)
    log.event("approval.asked")

    def actions(choice: RecordFilter) -> list[str]:
        return [json.loads(found.raw)["action"] for found in Stream(audit, choice, Cursor()).records()]

    assert actions(RecordFilter(tag="egress")) == ["egress.dial", "egress"]
    assert actions(RecordFilter(tag="decision")) == ["egress.dial"]
    assert actions(RecordFilter(tag="event")) == ["audit.open", "approval.asked"]
    assert actions(RecordFilter(since=4.0)) == ["approval.asked"]
    log.close()


def test_a_cursor_line_says_where_to_go_on() -> None:
    from paddock.audit import cursor_line

    assert cursor_of(cursor_line("abc")) == "abc"
    assert cursor_of(b'{"head":{}}\n') is None
