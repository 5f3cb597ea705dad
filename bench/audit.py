"""What a record costs to write, to sign and to check: `python -m bench.audit`. No sandbox, no network."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from paddock.audit import AuditLog, Cursor, HeadSigner, RecordFilter, Stream, open_key, verify

_RECORDS = 60_000
_ROUNDS = 5


def main() -> None:
    with tempfile.TemporaryDirectory(dir="/var/tmp") as directory:
        state = Path(directory)
        audit = state / "audit"
        log = AuditLog(audit)
        rates = [_written(log) for _ in range(_ROUNDS)]
        log.close()
        total = _RECORDS * _ROUNDS
        print(f"written, each before its effect   {max(rates):10,.0f} records/s")
        start = time.perf_counter()
        HeadSigner(audit, lambda: open_key(state)).sign()
        print(f"signed, all at once               {total / (time.perf_counter() - start):10,.0f} records/s")
        start = time.perf_counter()
        assert verify(audit).signed >= total
        print(f"verified                          {total / (time.perf_counter() - start):10,.0f} records/s")
        start = time.perf_counter()
        number = sum(1 for _ in Stream(audit, RecordFilter(), Cursor()).records())
        print(f"exported                          {number / (time.perf_counter() - start):10,.0f} records/s")


def _written(log: AuditLog) -> float:
    """Decisions with their outcomes, as the gateway writes them."""
    detail: dict[str, object] = {
        "instance_id": 1,
        "flow": 7,
        "host": "files.example.org",
        "port": 443,
        "revision": "r" * 64,
    }
    start = time.perf_counter()
    for _ in range(_RECORDS // 2):
        number = log.verdict(
            "egress.dial", allowed=True, rule="host files.example.org", reason="", sandbox="sb_0", detail=detail
        )
        log.outcome(number, "egress", ok=True, detail={"sent": 100, "received": 1000})
    return _RECORDS / (time.perf_counter() - start)


if __name__ == "__main__":
    main()
