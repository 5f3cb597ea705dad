from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from paddock.audit import AuditLog, verify
from paddock.audit._record import GENESIS, Record, seal

WRITERS, EVENTS = 3, 5


def build(directory: Path) -> list[Path]:
    """Three segments; the last writer has seen, and so vouches for, everything before it."""
    logs = [AuditLog(directory) for _ in range(WRITERS)]
    for number in range(EVENTS):
        for log in logs:
            log.event(f"event-{number}", text="x" * number)
    witness = AuditLog(directory)
    for log in (*logs, witness):
        log.close()
    AuditLog(directory).close()
    return sorted(directory.glob("*.jsonl"))


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in build(tmp_path_factory.mktemp("good"))}


def write(directory: Path, files: dict[str, bytes]) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    for path in directory.iterdir():
        path.unlink()
    for name, data in files.items():
        (directory / name).write_bytes(data)
    return directory


def test_a_log_that_nobody_touched_is_ok(tmp_path: Path, good: dict[str, bytes]) -> None:
    report = verify(write(tmp_path, good))
    assert report.ok
    assert report.problem is None
    assert report.segments == WRITERS + 1
    assert report.records == sum(data.count(b"\n") for data in good.values())


def test_an_empty_or_missing_log_is_ok(tmp_path: Path) -> None:
    assert verify(tmp_path).ok
    assert verify(tmp_path / "none").records == 0


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], deadline=None)
@given(data=st.data())
def test_any_changed_byte_is_found(tmp_path: Path, good: dict[str, bytes], data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(good)))
    at = data.draw(st.integers(0, len(good[name]) - 1))
    byte = data.draw(st.integers(0, 255).filter(lambda b: b != good[name][at]))
    changed = good[name][:at] + bytes([byte]) + good[name][at + 1 :]
    report = verify(write(tmp_path, {**good, name: changed}))
    # The very last newline is the one byte whose loss looks like a torn line, and is told as such.
    assert not report.ok or (report.problem is not None and "torn" in report.problem and at == len(changed) - 1)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], deadline=None)
@given(data=st.data())
def test_removed_repeated_and_reordered_lines_are_found(
    tmp_path: Path, good: dict[str, bytes], data: st.DataObject
) -> None:
    name = data.draw(st.sampled_from(sorted(good)))
    lines = good[name].splitlines(keepends=True)
    last = len(lines) - 1
    match data.draw(st.sampled_from(["remove", "repeat", "swap"])):
        case "remove":
            del lines[data.draw(st.integers(0, last - 1))]
        case "repeat":
            at = data.draw(st.integers(0, last))
            lines.insert(data.draw(st.integers(0, last)), lines[at])
        case _:
            one, two = data.draw(st.lists(st.integers(0, last), min_size=2, max_size=2, unique=True))
            lines[one], lines[two] = lines[two], lines[one]
    report = verify(write(tmp_path, {**good, name: b"".join(lines)}))
    assert not report.ok
    assert report.problem is not None
    assert name in report.problem


def test_a_removed_segment_is_missed_by_those_that_vouch_for_it(tmp_path: Path, good: dict[str, bytes]) -> None:
    for name in sorted(good)[:-1]:
        rest = {n: d for n, d in good.items() if n != name}
        report = verify(write(tmp_path, rest))
        assert not report.ok
        assert f"vouches for segment {name}, which is gone" in (report.problem or "")


def test_a_tail_that_others_vouch_for_cannot_be_cut(tmp_path: Path) -> None:
    first, second = AuditLog(tmp_path), None
    for number in range(5):
        first.event(f"e{number}")
    second = AuditLog(tmp_path)
    first.event("after")
    path = tmp_path / first.segment
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:-1]))
    assert verify(tmp_path).ok  # nobody vouched for the last record: see docs/audit.md
    path.write_bytes(b"".join(lines[:-2]))
    report = verify(tmp_path)
    assert not report.ok
    assert "the tail is gone" in (report.problem or "")
    second.close()
    first.close()


def test_a_torn_last_line_is_told_and_ok_and_never_continued(tmp_path: Path) -> None:
    log = AuditLog(tmp_path)
    log.event("whole")
    path = tmp_path / log.segment
    log.close()
    path.write_bytes(path.read_bytes()[:-10])
    report = verify(tmp_path)
    assert report.ok
    assert "torn" in (report.problem or "")
    after = AuditLog(tmp_path)
    assert after.segment != log.segment
    after.close()
    assert verify(tmp_path).ok


def test_a_forged_record_needs_the_whole_chain(tmp_path: Path) -> None:
    log = AuditLog(tmp_path)
    for number in range(3):
        log.event(f"e{number}")
    log.close()
    path = tmp_path / log.segment
    lines = path.read_bytes().splitlines(keepends=True)
    forged = json.loads(lines[2])
    own = forged.pop("sha256")
    forged["action"] = "something-harmless"
    body = json.dumps(forged, separators=(",", ":")).encode()
    digest = hashlib.sha256(body).hexdigest()
    lines[2] = body[:-1] + f',"sha256":"{digest}"}}\n'.encode()
    assert own != digest
    path.write_bytes(b"".join(lines))
    report = verify(tmp_path)
    assert not report.ok
    assert "line 4: it does not follow the record before it" in (report.problem or "")


def test_a_segment_rewritten_as_a_whole_is_not_what_others_vouch_for(tmp_path: Path) -> None:
    first = AuditLog(tmp_path)
    first.event("theft")
    witness = AuditLog(tmp_path)
    first.close()
    witness.close()
    (tmp_path / first.segment).write_bytes(chain(["audit.open", "nothing", "audit.close"], heads={}))
    report = verify(tmp_path)
    assert not report.ok
    assert "not the record that" in (report.problem or "")


def test_numbers_that_skip_are_found_though_the_chain_holds(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(chain(["a", "b", "c"]))
    assert verify(tmp_path).ok
    (tmp_path / "a.jsonl").write_bytes(chain(["a", "b", "c"], first=1))
    assert "it is record 1, not 0" in (verify(tmp_path).problem or "")


def chain(actions: list[str], *, first: int = 0, heads: dict[str, object] | None = None) -> bytes:
    lines, prev = b"", GENESIS
    for number, action in enumerate(actions, first):
        detail = {} if heads is None else {"heads": heads}
        record = Record(
            seq=number, time=0, boottime=0, writer="w", kind="event", action=action, prev=prev, detail=detail
        )
        line, prev = seal(record)
        lines += line
    return lines


@pytest.mark.parametrize(
    "detail",
    [{}, {"heads": 1}, {"heads": {"x": 1}}, {"heads": {"x": [-1, "a"]}}, {"heads": {"x": ["a", "b"]}}],
)
def test_links_that_make_no_sense_are_a_finding_not_a_crash(tmp_path: Path, detail: dict[str, object]) -> None:
    record = Record(
        seq=0, time=0, boottime=0, writer="w", kind="event", action="audit.open", prev=GENESIS, detail=detail
    )
    (tmp_path / "a.jsonl").write_bytes(seal(record)[0])
    assert not verify(tmp_path).ok


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], deadline=None)
@given(junk=st.binary())
def test_junk_never_raises(tmp_path: Path, junk: bytes) -> None:
    report = verify(write(tmp_path, {"a.jsonl": junk}))
    assert report.ok is (b"\n" not in junk)
