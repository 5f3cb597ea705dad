"""Whether the symbolic links of a tree stay inside it, judged by their names alone."""

from __future__ import annotations

from paddock.errors import GuestProtocolError

Parts = tuple[str, ...]

_HOPS = 40  # as the kernel: MAXSYMLINKS, include/linux/namei.h
_STEPS = 10_000_000
_BYTES = 32 << 20


class Links:
    """All the symbolic links of one tree. Bounded in memory and in work: an attacker chose them.

    `a/../..` may be harmless or not, depending on what `a` links to, so that a link is followed
    through the others as the kernel would do it.
    """

    def __init__(self) -> None:
        self._targets: dict[Parts, str] = {}
        self._bytes = 0
        self._steps = 0

    def add(self, link: Parts, target: str) -> bool:
        """False if there is one of that name."""
        if link in self._targets:
            return False
        self._bytes += sum(map(len, link)) + len(target)
        if self._bytes > _BYTES:
            raise GuestProtocolError("the sandbox sent more symbolic links than can be checked")
        self._targets[link] = target
        return True

    def items(self) -> tuple[tuple[Parts, str], ...]:
        return tuple(self._targets.items())

    def leads_out(self, link: Parts) -> bool:
        where = list(link[:-1])
        todo = [link[-1]]
        hops = 0
        while todo:
            self._spend(1)
            part = todo.pop()
            if part == "..":
                if not where:
                    return True
                where.pop()
            elif part not in ("", "."):
                where.append(part)
                target = self._targets.get(tuple(where))
                if target is not None:
                    hops += 1
                    if hops > _HOPS or not target or target.startswith("/"):
                        return True
                    where.pop()
                    todo += reversed(target.split("/"))
        return False

    def _spend(self, steps: int) -> None:
        self._steps += steps
        if self._steps > _STEPS:
            raise GuestProtocolError("the sandbox sent symbolic links that take too long to check")
