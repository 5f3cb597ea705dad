"""Signed heads: what they vouch for, who may sign, and what somebody finds who has only a copy and a public key."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from paddock.audit import AuditLog, HeadSigner, SigningKey, open_key, public_pem, read_public_key, verify
from paddock.audit import _log as log_module
from paddock.errors import InvalidArgumentError, NotConfiguredError


@pytest.fixture
def key(tmp_path: Path) -> SigningKey:
    return open_key(tmp_path)


@pytest.fixture
def audit(tmp_path: Path) -> Path:
    return tmp_path / "audit"


def lines(path: Path) -> list[bytes]:
    return path.read_bytes().splitlines(keepends=True)


def signed_log(audit: Path, key: SigningKey) -> tuple[AuditLog, AuditLog, HeadSigner]:
    """A service's and a gateway's segment; two heads, and records after them."""
    service, gateway = AuditLog(audit), AuditLog(audit)
    signer = HeadSigner(audit, lambda: key)
    for turn in range(2):
        for number in range(4):
            service.event("task.failed", message=f"{turn} {number}")
            gateway.verdict("egress.dial", allowed=True, rule="r", reason="", sandbox="sb_1", detail={"flow": number})
        assert signer.sign() is not None
    service.event("task.failed", message="after")
    return service, gateway, signer


def test_the_key_is_made_once_private_and_outside_of_what_the_gateway_can_write(tmp_path: Path) -> None:
    found: list[bytes] = []
    threads = [threading.Thread(target=lambda: found.append(open_key(tmp_path).public)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert len(set(found)) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["audit.key"]
    assert stat.S_IMODE((tmp_path / "audit.key").stat().st_mode) == 0o600


def test_a_key_that_others_can_read_or_that_is_none_is_refused(tmp_path: Path) -> None:
    open_key(tmp_path)
    (tmp_path / "audit.key").chmod(0o644)
    with pytest.raises(NotConfiguredError, match="read by others"):
        open_key(tmp_path)
    (tmp_path / "other").write_text("no key")
    (tmp_path / "other").chmod(0o600)
    with pytest.raises(NotConfiguredError, match="no Ed25519 key"):
        open_key(tmp_path, str(tmp_path / "other"))
    with pytest.raises(NotConfiguredError, match="there is no"):
        open_key(tmp_path, str(tmp_path / "missing"))
    with pytest.raises(InvalidArgumentError, match="not an Ed25519 public key"):
        read_public_key(b"-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n")


def test_a_brought_key_signs_and_its_public_half_is_what_openssl_reads(tmp_path: Path, audit: Path) -> None:
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("there is no openssl here")
    mine = tmp_path / "mine.pem"
    subprocess.run([openssl, "genpkey", "-algorithm", "ed25519", "-out", mine], check=True, capture_output=True)
    mine.chmod(0o600)
    key = open_key(tmp_path, str(mine))
    told = subprocess.run([openssl, "pkey", "-in", mine, "-pubout"], check=True, capture_output=True).stdout
    assert public_pem(key.public).encode() == told
    log = AuditLog(audit)
    HeadSigner(audit, lambda: key).sign()
    log.close()
    assert verify(audit, [read_public_key(told)]).ok


def test_heads_vouch_for_every_segment_and_the_report_says_up_to_where(audit: Path, key: SigningKey) -> None:
    service, gateway, signer = signed_log(audit, key)
    report = verify(audit, [key.public])
    assert (report.ok, report.heads, report.keys) == (True, 2, (key.id,))
    assert report.records == 1 + 8 + 1 + 8 + 1
    assert report.signed == report.records - 1
    assert signer.sign() is not None
    assert signer.sign() is None, "nothing was new"
    assert verify(audit).signed == report.records
    service.close()
    gateway.close()


Tamper = Callable[[list[bytes]], list[bytes]]


@pytest.mark.parametrize(
    ("tamper", "first_bad"),
    [
        (lambda ls: [*ls[:3], ls[3].replace(b'"1 ', b'"9 ').replace(b'"0 ', b'"9 '), *ls[4:]], 3),
        (lambda ls: [*ls[:3], *ls[4:]], 3),
        (lambda ls: [*ls[:3], ls[4], ls[3], *ls[5:]], 3),
        (lambda ls: ls[:5], 5),
    ],
    ids=["edit", "delete", "reorder", "truncate"],
)
def test_what_was_done_to_a_copy_is_named_by_its_first_record(
    tmp_path: Path, audit: Path, key: SigningKey, tamper: Tamper, first_bad: int
) -> None:
    service, gateway, _ = signed_log(audit, key)
    service.close()
    gateway.close()
    copy = tmp_path / "copy"
    shutil.copytree(audit, copy)
    path = copy / service.segment
    path.write_bytes(b"".join(tamper(lines(path))))
    report = verify(copy, [key.public])
    assert not report.ok
    assert report.fault is not None
    assert (report.fault.segment, report.fault.seq, report.fault.line) == (service.segment, first_bad, first_bad + 1)


def test_a_history_that_was_written_anew_is_not_the_signed_one(tmp_path: Path, audit: Path, key: SigningKey) -> None:
    """All digests are right; only who has the key can make them count."""
    log = AuditLog(audit)
    log.event("theft")
    HeadSigner(audit, lambda: key).sign()
    log.close()
    forged = AuditLog(tmp_path / "forged")
    forged.event("nothing")
    forged.close()
    (audit / log.segment).write_bytes((tmp_path / "forged" / forged.segment).read_bytes())
    report = verify(audit)
    assert not report.ok
    assert "not the record that signed head 0 vouches for" in (report.problem or "")
    (tmp_path / "other").mkdir()
    other = open_key(tmp_path / "other", {})
    (audit / "heads").unlink()
    HeadSigner(audit, lambda: other).sign()
    assert verify(audit).ok, "it is whole, by a key that it brings itself"
    report = verify(audit, [key.public])
    assert not report.ok
    assert "signed with another key" in (report.problem or "")


def test_a_log_that_nobody_signed_does_not_pass_for_a_given_key(audit: Path, key: SigningKey) -> None:
    AuditLog(audit).close()
    assert verify(audit).ok
    assert "nothing was signed" in (verify(audit, [key.public]).problem or "")


@pytest.mark.parametrize("line", range(3))
def test_heads_are_a_chain_of_their_own(audit: Path, key: SigningKey, line: int) -> None:
    service, gateway, signer = signed_log(audit, key)
    signer.sign()
    heads = lines(audit / "heads")
    (audit / "heads").write_bytes(b"".join([*heads[:line], heads[line].replace(b'"n"', b'"m"'), *heads[line + 1 :]]))
    assert verify(audit).fault is not None
    (audit / "heads").write_bytes(b"".join([*heads[:line], heads[line].replace(b'"time":1', b'"time":2')]))
    assert "its signature is not that of its content" in (verify(audit).problem or "")
    if line < 2:
        (audit / "heads").write_bytes(b"".join(heads[:line] + heads[line + 1 :]))
        expected = "does not follow the head before it" if line else "the records before it are gone"
        assert expected in (verify(audit).problem or "")
    service.close()
    gateway.close()


def test_heads_that_were_cut_off_are_missed_by_who_came_later(audit: Path, key: SigningKey) -> None:
    service, gateway, _ = signed_log(audit, key)
    AuditLog(audit).close()
    heads = lines(audit / "heads")
    (audit / "heads").write_bytes(heads[0])
    assert "it has seen signed head 1, which is gone" in (verify(audit).problem or "")
    (audit / "heads").unlink()
    assert "it has seen signed head 1, which is gone" in (verify(audit).problem or "")
    service.close()
    gateway.close()


def test_a_head_that_was_written_half_is_cut_off_by_the_next_signer(audit: Path, key: SigningKey) -> None:
    service, gateway, signer = signed_log(audit, key)
    whole = (audit / "heads").read_bytes()
    (audit / "heads").write_bytes(whole + whole.splitlines()[1][:100])
    assert verify(audit).ok
    head = signer.sign()
    assert head is not None
    assert head.n == 2
    assert verify(audit, [key.public]).heads == 3
    service.close()
    gateway.close()


def test_what_does_not_follow_from_what_was_signed_is_never_signed(audit: Path, key: SigningKey) -> None:
    service, gateway, signer = signed_log(audit, key)
    path = audit / service.segment
    changed = lines(path)
    changed[-1] = changed[-1].replace(b"after", b"other")
    path.write_bytes(b"".join(changed))
    gateway.event("more")
    head = signer.sign()
    assert head is not None
    assert head.heads[service.segment][0] == len(changed) - 2, "the last good one stays"
    assert head.heads[gateway.segment][0] == 9
    assert "line 10: its digest is not that of its content" in signer.broken[service.segment]
    path.write_bytes(b"".join(changed[:4]))
    signer.sign()
    assert "records that were signed are gone" in signer.broken[service.segment]
    service.close()
    gateway.close()


def test_a_record_that_was_taken_out_before_it_was_signed_stops_the_signatures_there(
    audit: Path, key: SigningKey
) -> None:
    service, gateway, signer = signed_log(audit, key)
    service.event("more")
    path = audit / service.segment
    kept = lines(path)
    path.write_bytes(b"".join([*kept[:-2], kept[-1]]))
    gateway.event("more")
    head = signer.sign()
    assert head is not None
    assert head.heads[service.segment][0] == len(kept) - 3
    assert "does not follow the record before it" in signer.broken[service.segment]
    service.close()
    gateway.close()


def test_heads_stay_short_however_long_the_history(
    audit: Path, key: SigningKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_module, "PART_BYTES", 2000)
    signer = HeadSigner(audit, lambda: key)
    for _ in range(6):
        log = AuditLog(audit)
        log.event("task.failed", message="x" * 2000)
        log.close()
        signer.sign()
    assert signer.sign() is None, "nothing is new"
    report = verify(audit, [key.public])
    assert (report.ok, report.segments, report.signed) == (True, 1, report.records)
    first = min(audit.glob("*.jsonl.*"))
    first.write_bytes(b"".join(lines(first)[:-1]))
    assert not verify(audit).ok


def test_threads_that_sign_at_once_make_one_chain(audit: Path, key: SigningKey) -> None:
    signer = HeadSigner(audit, lambda: key)

    def work(log: AuditLog) -> None:
        for n in range(20):
            log.event("e", n=n)
            signer.sign()

    logs = [AuditLog(audit) for _ in range(3)]
    with ThreadPoolExecutor() as threads:
        list(threads.map(work, logs))
    report = verify(audit, [key.public])
    assert report.ok, report.problem
    assert report.heads >= 20
    assert report.signed == report.records == 3 * 21


def test_a_writer_imports_nothing_of_cryptography(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from paddock.audit import AuditLog\n"
        "AuditLog(Path(sys.argv[1])).event('e'); assert 'cryptography' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program, tmp_path / "a"], check=True, env={**os.environ})


def test_the_head_is_one_line_of_json_that_anyone_can_check(audit: Path, key: SigningKey) -> None:
    import base64

    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    service, gateway, _ = signed_log(audit, key)
    service.close()
    gateway.close()
    line = lines(audit / "heads")[1]
    told = json.loads(line)
    body = line[: line.rindex(b',"signature"')] + b"}"
    public = Ed25519PublicKey.from_public_bytes(base64.b64decode(told["key"]))
    public.verify(base64.b64decode(told["signature"]), b"paddock audit head 1\n" + body)
    assert set(told["heads"]) == {service.segment, gateway.segment}
