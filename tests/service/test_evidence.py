"""Who signs, and when; what is told when it can't."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from paddock.audit import AuditLog, read_records, verify
from paddock.daemon.clock import Clock
from paddock.daemon.tasks import Activity
from paddock.daemon.upkeep import evidence as module
from paddock.daemon.upkeep.evidence import Evidence
from paddock.model import ListAudit
from paddock.model.config import Config


class Times:
    """A clock that stands still until it is told."""

    def __init__(self) -> None:
        self.ahead = 0.0
        real = Clock()
        self.clock = Clock(wall=lambda: real.wall() + self.ahead, boottime=lambda: real.boottime() + self.ahead)


async def end(evidence: Evidence, log: AuditLog) -> None:
    log.close()
    await evidence.aclose()


@pytest.mark.parametrize(("lived", "heads"), [(0.0, 0), (module.SIGN_SECONDS, 1), (3600.0, 1)])
def test_a_short_program_leaves_signing_to_the_next_but_not_for_long(tmp_path: Path, lived: float, heads: int) -> None:
    times, log = Times(), AuditLog(tmp_path / "audit")
    evidence = Evidence(tmp_path, log, times.clock, Config())
    times.ahead = lived
    asyncio.run(end(evidence, log))
    report = verify(tmp_path / "audit")
    assert (report.heads, report.signed) == (heads, report.records if heads else 0)
    later = AuditLog(tmp_path / "audit")
    times.ahead += 61.0
    asyncio.run(end(Evidence(tmp_path, later, times.clock, Config()), later))
    report = verify(tmp_path / "audit")
    assert report.signed == report.records, "the last record too"


def test_a_service_signs_beside_its_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SIGN_SECONDS", 0.01)
    log = AuditLog(tmp_path / "audit")
    evidence = Evidence(tmp_path, log, Clock(), Config())

    async def work() -> None:
        signed, loop, sign = asyncio.Event(), asyncio.get_running_loop(), evidence.sign

        def sign_and_tell() -> None:
            sign()
            loop.call_soon_threadsafe(signed.set)

        monkeypatch.setattr(evidence, "sign", sign_and_tell)
        task = loop.create_task(evidence.run(Activity(lambda: True)))
        for number in range(3):
            signed.clear()
            log.event("task.failed", message=str(number))
            while verify(tmp_path / "audit").signed < number + 2:
                await signed.wait()
                signed.clear()
        task.cancel()

    asyncio.run(work())
    log.close()


def test_what_keeps_it_from_signing_is_recorded_once(tmp_path: Path) -> None:
    (tmp_path / "audit.key").write_text("no key")
    (tmp_path / "audit.key").chmod(0o600)
    log = AuditLog(tmp_path / "audit")
    evidence = Evidence(tmp_path, log, Clock(), Config())
    evidence.sign()
    evidence.sign()
    path = tmp_path / "audit" / log.segment
    assert path.read_bytes().count(b'"action":"audit.unsigned"') == 1
    (tmp_path / "audit.key").unlink()
    evidence.sign()
    assert verify(tmp_path / "audit").signed == 2
    log.event("later", message="before it was signed")
    path.write_bytes(path.read_bytes().replace(b"before it was", b"after it was "))
    evidence.sign()
    evidence.sign()
    assert path.read_bytes().count(b'"action":"audit.broken"') == 1
    log.close()


@pytest.mark.parametrize("limit", ["bytes", "seconds"])
def test_what_is_too_much_or_too_old_is_removed_and_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    monkeypatch.setattr("paddock.audit._log.PART_BYTES", 10_000)
    directory = tmp_path / "audit"
    log = AuditLog(directory)
    evidence, free = (Evidence(tmp_path, log, Clock(), Config()) for _ in range(2))
    setattr(evidence, f"_most_{limit}", {"bytes": 20_000.0, "seconds": -1.0}[limit])
    for number in range(400):
        log.event("task.failed", message=f"{number} {os.urandom(50).hex()}")
    free.sign()
    free.keep()
    before = sum(path.stat().st_size for path in directory.iterdir())
    assert before > 40_000
    assert verify(directory).removed == {}
    evidence.keep()
    evidence.sign()
    report = verify(directory)
    assert report.ok, report.problem
    assert report.signed == report.records
    assert list(report.removed) == [log.segment]
    assert sum(path.stat().st_size for path in directory.iterdir()) < 30_000
    (found,) = [r for r in read_records(directory, ListAudit()) if r.action == "audit.removed"]
    assert found.detail["number"] == len(found.detail["parts"]) > 0
    log.close()
