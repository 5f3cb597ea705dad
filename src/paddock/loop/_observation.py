"""What a model is shown of what happened: bounded, the middle counted, never silently short."""

from __future__ import annotations

import hashlib

import msgspec

from paddock.model import ExecResult, Output


class Observation(msgspec.Struct, frozen=True, kw_only=True):
    """`failed`: it was the model's mistake, or did not work. `exec`: the command, if one ran."""

    text: str
    failed: bool = False
    exec: str | None = None

    @property
    def digest(self) -> str:
        return digest(self.text)


def digest(text: str) -> str:
    return "sha256:" + hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def cut(text: str, max_chars: int) -> str:
    """Head and tail; between them, how much was left out."""
    if len(text) <= max_chars:
        return text
    head, tail = max_chars - max_chars // 2, max_chars // 2
    return f"{text[:head]}\n[… {len(text) - head - tail} characters left out …]\n{text[len(text) - tail :]}"


def of_command(result: ExecResult, max_chars: int) -> Observation:
    """`max_chars` of each stream. The result was captured with as many bytes: what a result has no room for the
    sandbox keeps whole, so that whatever is left out here can be read."""
    text = result.observation(2 * max_chars)
    for name, stream in (("stdout", result.out), ("stderr", result.err)):
        if stream.omitted_bytes:
            text += f"\n[{_where(result, name, stream)}]"
    return Observation(text=text, failed=not result.ok, exec=result.id)


def _where(result: ExecResult, name: str, stream: Output) -> str:
    if stream.file is None:
        return f"the rest of {name} was not kept: it was more than the sandbox may print"
    return f'all {stream.total_bytes} bytes of {name}: read_output(exec="{result.id}", stream="{name}", offset=...)'
