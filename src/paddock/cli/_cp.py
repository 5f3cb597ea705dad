"""Between here and a sandbox: `paddock cp` copies files and trees, `paddock forward` has a port lead to one inside."""

from __future__ import annotations

import argparse
import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from typing import BinaryIO

from paddock import client, model
from paddock.errors import FileError, FileMissingError, InvalidArgumentError

from . import _render
from ._answer import answer
from ._usage import argument, usage
from ._values import SANDBOX, mebibytes

_CHUNK_BYTES = 1 << 20


@usage(
    argument("source", metavar="SOURCE", help="a local path, or ID:PATH"),
    argument("target", metavar="TARGET", help="a local path, or ID:PATH"),
    argument("--skip-unsafe", action="store_true", help="pass over what would lead out, instead of failing"),
    argument("--max", type=mebibytes, default=4096, metavar="SIZE", help="copy at most so much out (default: 4g)"),
)
def verb_cp(options: argparse.Namespace) -> int:
    """Copy a file or a directory.

    One of both is ID:PATH. If the target is a directory, a file goes into it; ID:PATH/ always is one. A directory from
    the sandbox goes into a new one, without links that lead out.

    Examples:
        paddock cp main.py box:
        paddock cp box:out ./out
    """
    from ._progress import progress

    source, target = _inside(options.source), _inside(options.target)
    if (source is None) == (target is None):
        raise InvalidArgumentError("exactly one of both must be ID:PATH", hint="paddock cp FILE ID:/workspace/FILE")
    with progress(f"copying {os.path.basename(options.source.rstrip('/'))}") as shown:
        if target is not None:
            skipped = _into(client.Sandbox.connect(target[0]).filesystem, options.source, target[1], shown.moved)
        else:
            assert source is not None
            files = client.Sandbox.connect(source[0]).filesystem
            skipped = _out_of(files, source[1], options, shown.moved)
    return answer(options, {"skipped": skipped}, notes=(f"passed over: {name}" for name in skipped))


def _into(files: client.Filesystem, source: str, path: str, moved: Callable[[int], object]) -> tuple[str, ...]:
    if os.path.isdir(source):
        return files.upload(source, path, on_progress=moved).skipped
    with contextlib.suppress(FileMissingError):
        if path.endswith("/") or files.stat(path, follow=True).kind is model.FileKind.DIRECTORY:
            path = f"{path.rstrip('/')}/{os.path.basename(source)}"
    with open(source, "rb") as file:
        files.write(path, _chunks(file, moved), mode=os.fstat(file.fileno()).st_mode & 0o777)
    return ()


def _chunks(file: BinaryIO, moved: Callable[[int], object]) -> Iterator[bytes]:
    while data := file.read(_CHUNK_BYTES):
        yield data
        moved(len(data))


def _out_of(
    files: client.Filesystem, path: str, options: argparse.Namespace, moved: Callable[[int], object]
) -> tuple[str, ...]:
    target, most = options.target, options.max << 20
    info = files.stat(path, follow=True)
    if info.kind is model.FileKind.DIRECTORY:
        unsafe = options.skip_unsafe
        return files.download(path, target, max_bytes=most, skip_unsafe=unsafe, on_progress=moved).skipped
    if os.path.isdir(target):
        target = os.path.join(target, os.path.basename(path))
    if info.size_bytes > most:  # a sparse file takes nothing of the sandbox's disk
        raise _too_large(path, info.size_bytes, options.max)
    with files.open(path, "rb", length=most + 1) as reader, open(target, "wb") as file:
        for data in reader:
            file.write(data)
            moved(len(data))
        if file.tell() > most:  # it has grown meanwhile
            raise _too_large(path, file.tell(), options.max)
    return ()


def _too_large(path: str, size: int, most_mib: int) -> FileError:
    hint = f"--max {(size >> 20) + 1}m"
    return FileError(f"{path!r} has {size} bytes, above {most_mib} MiB", hint=hint, errno="EFBIG")


def _inside(text: str) -> tuple[str, str] | None:
    """Return sandbox and path, or None for a local path. One with a colon in it begins with a slash or a dot: ./a:b."""
    sandbox, colon, path = text.partition(":")
    return (sandbox, path or ".") if colon and sandbox and "/" not in sandbox else None


def _ports(text: str) -> tuple[int, int]:
    """`8000`, `8080:80`: the port here, 0 for any free one, and the port inside."""
    here, colon, inside = text.rpartition(":")
    if not inside.isdecimal() or (colon and not here.isdecimal()) or not 0 < int(inside) < 65536:
        raise argparse.ArgumentTypeError(f"{text!r} isn't a port: write 8000, or 8080:80 for port 8080 of this machine")
    return int(here or 0), int(inside)


@usage(
    SANDBOX,
    argument("ports", type=_ports, metavar="[LOCAL:]PORT", help="the port inside; LOCAL is the one of this machine"),
    argument("--host", default="127.0.0.1", metavar="ADDRESS", help="of this machine (default: 127.0.0.1)"),
)
def verb_forward(options: argparse.Namespace) -> int:
    """Have a port of this machine lead to a port that a program inside listens on, until Ctrl-C. Prints the URL.

    Examples:
        paddock forward box 8000
        paddock forward box 8080:80
    """
    local_port, port = options.ports
    sandbox = client.Sandbox.connect(options.sandbox)
    try:
        forward = sandbox.forward(port, local_port=local_port, host=options.host)
    except OSError as error:
        where = f"port {local_port} of {options.host}" if local_port else f"address {options.host}"
        raise InvalidArgumentError(
            f"{where} cannot be used: {os.strerror(error.errno or 0)}",
            hint=f"another one: paddock forward {options.sandbox} {port}",
        ) from None
    with forward as url:
        if options.json:
            _render.document({"url": str(url), "host": url.host, "port": url.port})
        else:
            _render.line(url)
        _render.flush()
        threading.Event().wait()
    return 0
