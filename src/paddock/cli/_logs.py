"""`paddock logs`: the kept output of commands."""

from __future__ import annotations

import argparse
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Literal

from paddock.errors import InvalidArgumentError, NotFoundError

from . import _render
from ._answer import listing
from ._usage import argument, exclusive, usage
from ._values import SANDBOX, positive

if TYPE_CHECKING:
    from paddock.client import Sandbox
    from paddock.model import ExecInfo

_LINE_BYTES = 1 << 16
_DOCUMENT_BYTES = 16 << 20
_COMMAND_CHARS = 120
_Stream = Literal["stdout", "stderr"]
_STREAMS: dict[_Stream, int] = {"stdout": 1, "stderr": 2}


@usage(
    SANDBOX,
    argument("exec", nargs="?", metavar="EXEC", help="id of a command or its beginning; -f: the newest"),
    argument("-f", "--follow", action="store_true", help="and what it prints from now on, to its end"),
    exclusive(
        argument("--head", type=positive, metavar="N", help="the first N lines of each stream"),
        argument("--tail", type=positive, metavar="N", help="the last N lines of each stream"),
    ),
)
def verb_logs(options: argparse.Namespace) -> int:
    """List the commands of a sandbox, or print the output of EXEC.

    Of a background command (`exec -d`) that is all output. Of a completed command it is the output that didn't fit into
    its result. Its stdout goes to stdout, its stderr to stderr. It exists as long as the sandbox.

    Examples:
        paddock logs -f box
    """
    from paddock import Sandbox

    if options.follow and (options.json or options.head is not None):
        raise InvalidArgumentError("what is followed has no end yet", hint="leave out -f, or --json and --head")
    sandbox = Sandbox.connect(options.sandbox)
    commands = sandbox.processes()
    if options.exec is None and not options.follow:
        empty = "no command runs, and none was left running" if sys.stdout.isatty() else ""
        return listing(options, commands, "EXEC, STARTED, STATE, OUTPUT, COMMAND", _row, empty)
    exec_id = _chosen(commands, options.exec)
    output = _Output(sandbox, exec_id)
    if options.json:
        _render.document({"sandbox": sandbox.id, "exec": exec_id, **output.document(options)})
    elif options.follow:
        _follow(output, sandbox, options)
    else:
        output.show(options)
    return 0


class _Output:
    """The kept output of one command so far."""

    def __init__(self, sandbox: Sandbox, exec_id: str) -> None:
        self._sandbox, self.exec_id = sandbox, exec_id
        self.shown = {"stdout": 0, "stderr": 0}

    def chunks(self, stream: _Stream) -> Iterator[bytes]:
        with self._sandbox.output(self.exec_id, stream) as reader:
            for data in reader:
                self.shown[stream] += len(data)
                yield data

    def show(self, options: argparse.Namespace) -> None:
        for stream, descriptor in _STREAMS.items():
            for data in bounded(self.chunks(stream), options.head, options.tail):
                _render.raw(descriptor, data)

    def document(self, options: argparse.Namespace) -> dict[str, object]:
        """Return the last 16 MiB of each stream, and the number of missing bytes."""
        streams: dict[str, object] = {}
        for stream in _STREAMS:
            text = bytearray()
            left_out = 0
            for data in bounded(self.chunks(stream), options.head, options.tail):
                text += data
                left_out += max(0, len(text) - _DOCUMENT_BYTES)
                del text[:-_DOCUMENT_BYTES]
            streams[stream] = text.decode("utf-8", "replace")
            streams[f"{stream}_left_out_bytes"] = left_out
        return streams


def bounded(chunks: Iterable[bytes], head: int | None, tail: int | None) -> Iterator[bytes]:
    """Yield all lines, or the first or last ones.

    In memory are `tail` lines. One of more than 64 KiB counts as several.
    """
    if head is not None:
        yield from islice(lines(chunks, _LINE_BYTES), head)
    elif tail is not None:
        yield from deque(lines(chunks, _LINE_BYTES), maxlen=tail)
    else:
        yield from chunks


def lines(chunks: Iterable[bytes], longest: int = sys.maxsize) -> Iterator[bytes]:
    """Yield the lines, and pieces of lines that are longer."""
    rest = b""
    for data in chunks:
        *whole, rest = (rest + data).split(b"\n")
        yield from (line + b"\n" for line in whole)
        while len(rest) >= longest:
            yield rest[:longest]
            rest = rest[longest:]
    if rest:
        yield rest


def _follow(output: _Output, sandbox: Sandbox, options: argparse.Namespace) -> None:
    """Print a tail first, and then the output after it."""
    from ._exec import Pump

    if options.tail is not None:
        output.show(options)
    with sandbox.attach(output.exec_id) as process:
        pumps = [Pump(_after(getattr(process, name), output.shown[name]), fd) for name, fd in _STREAMS.items()]
        process.wait()
        for pump in pumps:
            pump.finish()


def _after(source: Iterable[bytes], skip: int) -> Iterator[bytes]:
    """Yield a stream of a command after its first bytes."""
    for data in source:
        passed, skip = data[skip:], max(0, skip - len(data))
        if passed:
            yield passed


def _chosen(commands: tuple[ExecInfo, ...], name: str | None) -> str:
    if name is None:
        kept = [command.id for command in commands if command.background]
        if not kept:
            raise NotFoundError(
                "no command of this sandbox runs in the background", hint="paddock exec -d ID -- COMMAND"
            )
        return kept[-1]
    found = [command.id for command in commands if command.id.startswith(name)]
    if len(found) > 1 and name not in found:
        raise InvalidArgumentError(f"{name!r} is the beginning of {', '.join(found[:8])}", hint="give more characters")
    return found[0] if found else name  # one that was run to its end is listed no more


def _row(command: ExecInfo) -> tuple[str, ...]:
    status = command.status
    state = "runs" if status is None else f"ended with {status.exit_code}"
    return (
        command.id,
        f"{_render.span(time.time() - command.started_at)} ago",
        state,
        "kept" if command.background else "its caller's",
        " ".join(command.argv)[:_COMMAND_CHARS],
    )
