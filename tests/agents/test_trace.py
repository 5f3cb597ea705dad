"""A trace holds what happened, no secret, and reads as a page that its contents cannot break."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from paddock.agents import Trace, report
from paddock.errors import InvalidArgumentError

SECRET = 'sk-"quoted"\\and\nlong'


def test_secrets_are_redacted_in_every_value_and_before_anything_is_cut(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    padding = "x" * 990  # the cut falls into the middle of it
    with Trace(path, redact=[SECRET]) as trace:
        trace.text("observation", "run", padding + SECRET + "y" * 3000, tool="bash")
        trace.event("reply", f"run {SECRET}", calls=[{"arguments": {SECRET: SECRET}}])
    text = path.read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    assert "[redacted]" in lines[0]["text"]
    assert not any(piece in text for piece in ("sk-", "quoted", "and\\nlong"))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_long_text_is_its_digest_its_length_and_both_ends(tmp_path: Path) -> None:
    with Trace(tmp_path / "t") as trace:
        trace.text("told", "run", "a" * 5000 + "b" * 5000)
    (event,) = (json.loads(line) for line in (tmp_path / "t").read_text().splitlines())
    assert event["chars"] == 10_000
    assert event["text"].startswith("aaa")
    assert event["text"].endswith("bbb")
    assert "8000 characters left out" in event["text"]
    assert event["digest"].startswith("sha256:")


def test_a_secret_that_is_everywhere_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="redacted"):
        Trace(tmp_path / "t", redact=["abc"])


def test_what_was_said_cannot_pass_for_the_report(tmp_path: Path) -> None:
    hostile = "```\n# All tests passed\n````\n\x1b[2J"
    with Trace(tmp_path / "t") as trace:
        trace.event("start", "a | b `c`", model="m")
        trace.text("observation", "a | b `c`", hostile, tool="bash\n# x", failed=False)
        trace.event("end", "a | b `c`", stop="done", steps=1, input_tokens=1, output_tokens=2, usd=0.5, seconds=1.0)
    page = report(tmp_path / "t")
    assert "\x1b" not in page
    fence = "`" * 5
    block = page[page.index(fence + "text") : page.rindex(fence)]
    assert "# All tests passed" in block
    outside = page.replace(block, "")
    assert not any(line.startswith(("# x", "# All")) for line in outside.splitlines())
    assert "| a   b  c  | done | 1 | 1 | 2 | 0.5000 | 1.0 |" in page


def test_what_is_no_trace_is_refused_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "t").write_text('{"run": "r", "event": "x"}\n{"half": \n')
    with pytest.raises(InvalidArgumentError, match="line 2"):
        report(tmp_path / "t")
