"""The first and the last bytes of a stream, and its lines as they come."""

from __future__ import annotations

from paddock.model import Output

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_LONGEST_LINE = 1 << 20


class Capture:
    """Keeps `most` bytes of a stream, half from its start and half from its end. Tells `tell` each line."""

    def __init__(self, most: int, tell: Callable[[str], object] | None) -> None:
        self._tell, self._rest = tell, b""
        self._head, self._tail = bytearray(), bytearray()
        self._first, self._last, self._total = most - most // 2, most // 2, 0

    def feed(self, data: bytes) -> None:
        self._total += len(data)
        missing = self._first - len(self._head)
        self._head += data[:missing]
        self._tail += data[missing:]
        if len(self._tail) > 2 * self._last:
            self._trim()
        if self._tell is not None:
            *whole, self._rest = (self._rest + data).split(b"\n")
            for line in whole:
                self._tell(line.decode("utf-8", "replace"))
            if len(self._rest) >= _LONGEST_LINE:
                self.end()

    def end(self) -> None:
        """Tell the last line, which has no end."""
        if self._tell is not None and self._rest:
            rest, self._rest = self._rest, b""
            self._tell(rest.decode("utf-8", "replace"))

    def output(self) -> Output:
        """Return the kept output."""
        self._trim()
        return Output(head=bytes(self._head), tail=bytes(self._tail), total_bytes=self._total)

    def _trim(self) -> None:
        del self._tail[: max(0, len(self._tail) - self._last)]
