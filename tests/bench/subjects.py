"""Contenders for the tests of the contest."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from bench.worker import TOTAL


class Scribe:
    """Notes every turn in a file that all contenders share."""

    def __init__(self, file: str, letter: str) -> None:
        self._file = Path(file)
        self._letter = letter
        print("a peer that talks on stdout")

    def once(self) -> dict[str, float]:
        with self._file.open("a") as file:
            file.write(self._letter)
        return {TOTAL: 1.0, "part": 0.5}

    def close(self) -> None:
        with self._file.open("a") as file:
            file.write(self._letter.lower())


class Burner:
    """Uses as much processor time as it is told."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def once(self) -> dict[str, float]:
        start = time.process_time()
        while time.process_time() < start + self._seconds:
            pass
        return {TOTAL: time.process_time() - start}

    def close(self) -> None: ...


class Dying:
    """Fails where it is told to."""

    def __init__(self, where: str) -> None:
        self._where = where
        if where == "start":
            raise RuntimeError("no engine here")

    def once(self) -> dict[str, float]:
        if self._where == "exit":
            sys.stderr.write("the last words\n")
            sys.stderr.flush()
            import os

            os._exit(7)
        raise RuntimeError("out of breath")

    def close(self) -> None: ...
