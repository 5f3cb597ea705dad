"""The backends of this installation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from paddock.backends.base import Backend
from paddock.errors import LevelUnavailableError, NotConfiguredError
from paddock.model import Level


class Backends:
    """Load the backends of this installation one by one, as they are needed: finding all that is installed takes longer
    than a create."""

    def __init__(
        self, source: Iterable[Backend] | Callable[[], Iterable[Backend]], default: Level = Level.JAIL
    ) -> None:
        self._source, self.default = source, default
        self._unloaded: Iterator[Backend] | None = None
        self._loaded: dict[str, Backend] = {}
        self._usable: set[str] = set()

    def all(self) -> tuple[Backend, ...]:
        return tuple(self._each())

    def loaded(self) -> tuple[Backend, ...]:
        """Without loading any."""
        return tuple(self._loaded.values())

    def named(self, name: str) -> Backend:
        backend = self.find(name)
        if backend is None:
            raise NotConfiguredError(f"backend {name!r} is not installed here", hint="paddock doctor")
        return backend

    def find(self, name: str) -> Backend | None:
        known = self._loaded.get(name)
        return known or next((backend for backend in self._each() if backend.name == name), None)

    def choose(self, level: Level | None) -> Backend:
        """Return a backend of the named level, or of the default one. LevelUnavailableError: this machine has none."""
        level = self.default if level is None else level
        refusals: list[str] = []
        for backend in self._each():
            if backend.level is not level:
                continue
            if backend.name in self._usable:
                return backend
            refusal = backend.probe()
            if refusal is None:
                self._usable.add(backend.name)  # asked once: what a probe looks at does not go away under a service
                return backend
            refusals.append(refusal)
        because = "; ".join(refusals) or "no backend of that level is installed"
        raise LevelUnavailableError(f"level {level.value!r} is not available here: {because}", hint="paddock doctor")

    def _each(self) -> Iterator[Backend]:
        """Yield the loaded ones, then load one more at a time."""
        yield from tuple(self._loaded.values())
        if self._unloaded is None:
            self._unloaded = iter(self._source() if callable(self._source) else self._source)
        for backend in self._unloaded:
            self._loaded.setdefault(backend.name, backend)
            yield backend
