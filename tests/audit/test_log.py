from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddock.audit import AuditLog, describe, redact_secrets, verify
from paddock.errors import UnrecordedError
from paddock.model import CreateSandbox, CreateSnapshot, Decision, ExecSpec, Principal, RunExec, SandboxSpec, WriteFile

ME = Principal("local:0")
YES = Decision(allowed=True, reason="because", rule="r")


def lines(directory: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for path in sorted(directory.glob("*.jsonl")) for line in path.read_bytes().splitlines()]


def test_a_record_says_who_what_when_and_why(tmp_path: Path) -> None:
    log = AuditLog(tmp_path)
    number = log.decision(ME, WriteFile(sandbox="sb_1", path="/a"), YES)
    log.outcome(number, "file.write", ok=False, error="file", message="no")
    log.event("sandbox.ended", sandbox="sb_1", reason="ttl")
    _, decision, outcome, event = lines(tmp_path)
    assert decision["principal"] == "local:0"
    assert (decision["kind"], decision["action"], decision["allowed"]) == ("decision", "file.write", True)
    assert (decision["rule"], decision["reason"], decision["sandbox"]) == ("r", "because", "sb_1")
    assert decision["time"] > 0
    assert decision["boottime"] > 0
    assert (outcome["kind"], outcome["of"], outcome["ok"], outcome["error"]) == ("outcome", number, False, "file")
    assert (event["kind"], event["detail"]) == ("event", {"reason": "ttl"})
    assert [r["seq"] for r in lines(tmp_path)] == [0, 1, 2, 3]


def test_contents_are_replaced_by_digests(tmp_path: Path) -> None:
    log = AuditLog(tmp_path)
    spec = ExecSpec(argv=("run", "--token", "s3cret", "A_TOKEN=s3cret"), env={"K": "s3cret"})
    log.decision(ME, RunExec(sandbox="x", spec=spec, input=b"s3cret"), YES)
    log.decision(ME, CreateSandbox(spec=SandboxSpec(env={"K": "s3cret"})), YES)
    log.decision(ME, CreateSnapshot(sandbox="x", env={"K": "s3cret"}), YES)
    text = "".join(p.read_text() for p in tmp_path.iterdir())
    assert "s3cret" not in text
    detail = lines(tmp_path)[1]["detail"]
    assert detail["input"]["length"] == 6
    assert set(detail["spec"]["env"]) == {"K"}
    assert detail["spec"]["argv"] == ["run", "--token", "[redacted]", "A_TOKEN=[redacted]"]


def test_argv_is_bounded() -> None:
    spec = ExecSpec(argv=("a" * 1_000_000, *("b" for _ in range(10_000))))
    size = len(json.dumps(describe(RunExec(sandbox="x", spec=spec)), default=str))
    assert size < 4096


def test_what_a_program_inside_may_ask_makes_no_large_record(tmp_path: Path) -> None:
    log, long = AuditLog(tmp_path), "x" * 1_000_000
    env = {f"{number}": "" for number in range(10_000)}
    log.decision(ME, RunExec(sandbox=long, spec=ExecSpec(argv=("a",), cwd=long, user=long, env=env)), YES)
    log.decision(ME, CreateSandbox(spec=SandboxSpec(name=long, template=long, env=env)), YES)
    _, run, create = lines(tmp_path)
    assert (len(run["sandbox"]), len(create["detail"]["spec"]["env"])) == (4119, 257)
    assert "[and 9744 more]" in run["detail"]["spec"]["env"]
    assert max(len(json.dumps(record)) for record in (run, create)) < 65536


@pytest.mark.parametrize(
    "argument",
    [
        "API_KEY=hush",
        "db.password: hush",
        "https://user:hush@example.org/",
        "curl -H 'Authorization: Bearer hushhush'",
        "GITHUB_TOKEN='hush hush' make",
        "--client-secret=hush",
    ],
)
def test_values_that_look_like_secrets_are_hidden(argument: str) -> None:
    assert "hush" not in " ".join(redact_secrets(["x", argument]))


@given(
    st.lists(
        st.text(st.characters(codec=None, categories=None))
        | st.sampled_from(["\n", "\r\n{}", "\x7f\x1b[2J", "\udcff", "\u2028"])
    )
)
def test_no_text_can_end_a_line_or_reach_a_terminal(tmp_path_factory: pytest.TempPathFactory, argv: list[str]) -> None:
    directory = tmp_path_factory.mktemp("log")
    log = AuditLog(directory)
    log.decision(Principal("".join(argv)), RunExec(sandbox="x", spec=ExecSpec(argv=tuple(argv))), YES)
    log.close()
    (path,) = directory.iterdir()
    data = path.read_bytes()
    assert data.count(b"\n") == 3
    assert all(32 <= byte < 127 or byte == 10 for byte in data)
    assert (
        lines(directory)[1].get("detail", {})["spec"].get("argv", [])
        == [a for a in redact_secrets(argv) if len(a) <= 1024][:64]
    )
    assert verify(directory).ok


def test_a_closed_log_records_nothing(tmp_path: Path) -> None:
    log = AuditLog(tmp_path)
    log.close()
    log.close()
    with pytest.raises(UnrecordedError, match="closed"):
        log.event("x")


def test_a_full_disk_is_unrecorded_and_leaves_no_half_line() -> None:
    # /dev/full is not a directory; a file size limit is the same refusal from the kernel, in the middle of a line.
    code = """
import resource, signal, sys, pathlib
from paddock.audit import AuditLog, verify
from paddock.errors import UnrecordedError
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
log = AuditLog(pathlib.Path(sys.argv[1]))
log.event("one")
size = (log.directory / log.segment).stat().st_size
resource.setrlimit(resource.RLIMIT_FSIZE, (size + 100, resource.RLIM_INFINITY))
try:
    log.event("two")
except UnrecordedError as error:
    print("unrecorded", (log.directory / log.segment).stat().st_size == size)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
log.event("three")
print(verify(log.directory).ok, verify(log.directory).records)
"""
    import tempfile

    with tempfile.TemporaryDirectory() as directory:
        done = subprocess.run([sys.executable, "-c", code, directory], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["unrecorded", "True", "True", "3"]


def test_a_record_survives_kill_9(tmp_path: Path) -> None:
    code = (
        "import os, sys, pathlib; from paddock.audit import AuditLog\n"
        "AuditLog(pathlib.Path(sys.argv[1])).event('last words'); os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False)
    assert lines(tmp_path)[-1]["action"] == "last words"
    # The next writer goes on where the dead one stopped.
    log = AuditLog(tmp_path)
    assert len(list(tmp_path.iterdir())) == 1
    log.close()
    assert verify(tmp_path).ok


def test_a_fork_cannot_write_into_its_parents_segment(tmp_path: Path) -> None:
    log = AuditLog(tmp_path)
    pid = os.fork()
    if pid == 0:
        try:
            log.event("child")
        except UnrecordedError:
            os._exit(7)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    log.event("parent")
    assert verify(tmp_path).records == 2


def test_writers_at_once_have_a_segment_each_and_writers_in_turn_share_one(tmp_path: Path) -> None:
    first, second = AuditLog(tmp_path), AuditLog(tmp_path)
    assert first.segment != second.segment
    first.event("a")
    first.close()
    third = AuditLog(tmp_path)
    assert third.segment == first.segment
    for log in (second, third):
        log.close()
    assert len(list(tmp_path.iterdir())) == 2
    assert verify(tmp_path).ok


def test_a_directory_that_cannot_be_written_is_unrecorded(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UnrecordedError):
        AuditLog(tmp_path / "file" / "audit")


def test_a_segment_that_another_writer_has_taken_and_left_meanwhile_goes_on_after_its_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.open

    def between(path: Any, flags: int, *rest: Any, **more: Any) -> int:
        fd = real(path, flags, *rest, **more)
        if flags & os.O_CREAT and str(path).endswith(".jsonl"):  # made, and not locked yet
            monkeypatch.undo()
            other = AuditLog(tmp_path)
            other.event("e")
            other.close()
        return fd

    monkeypatch.setattr(os, "open", between)
    log = AuditLog(tmp_path)
    log.event("e")
    log.close()
    report = verify(tmp_path)
    assert (report.ok, report.records) == (True, 6), report.problem


def test_writers_in_many_processes_lose_nothing(tmp_path: Path) -> None:
    code = (
        "import sys, pathlib; from paddock.audit import AuditLog\n"
        "for _ in range(5):\n"
        "    log = AuditLog(pathlib.Path(sys.argv[1]))\n"
        "    for n in range(40): log.event('e', n=n)\n"
        "    log.close()"
    )
    started = [subprocess.Popen([sys.executable, "-c", code, str(tmp_path)]) for _ in range(4)]
    assert [process.wait() for process in started] == [0, 0, 0, 0]
    report = verify(tmp_path)
    assert report.ok, report.problem
    assert report.records == 4 * 5 * 42
    assert report.segments <= 4
