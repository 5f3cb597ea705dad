"""The Dockerfile of a snapshot: its instructions, one by one, and what of the directory each copies."""

from __future__ import annotations

import json
import os
import re
import shlex
from pathlib import Path, PurePosixPath

from paddock.errors import InvalidArgumentError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_PASSED_OVER = frozenset(("CMD", "ENTRYPOINT", "EXPOSE", "HEALTHCHECK", "LABEL", "MAINTAINER", "STOPSIGNAL", "VOLUME"))
"""Nothing of these is in files, users or variables."""
_INSTEAD = {
    "ADD": "write COPY, or RUN with curl or tar",
    "ONBUILD": "write the instruction itself",
    "SHELL": 'write RUN ["program", "argument"]',
}
_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)(?::-([^}]*))?\})")
_LITERAL = re.compile(r"\\\$|'[^']*\$[^']*'")


class Dockerfile:
    """Gives the steps of a build. `env`, `workdir` and `user` are those in force at the last step that it gave.

    A step is RUN with a command, TREE or FILE with a source and a target, or WORKDIR with a directory.
    """

    def __init__(self, directory: str | os.PathLike[str], name: str, args: Mapping[str, str]) -> None:
        self.directory = Path(directory).resolve()
        self._name, self._given, self._line = name, args, 0
        self._args: dict[str, str] = {}
        self.env: dict[str, str] = {}
        self.base: dict[str, str] = {}
        """Variables of the image, once it is known."""
        self.workdir = "/"
        self.user: str | None = None
        self.owner: str | None = None
        """The user that COPY and WORKDIR act as: the image's, or root after `USER root`."""
        self.exclude = self._ignored()
        self._instructions = list(self._read((self.directory / name).read_text("utf-8")))

    def error(self, message: str, hint: str) -> InvalidArgumentError:
        return InvalidArgumentError(f"{self._name}:{self._line}: {message}", hint=hint)

    def place(self) -> str:
        """Return the file and the line of the last step."""
        return f"{self._name}:{self._line}"

    def variables(self) -> dict[str, str]:
        """Return the variables of a RUN."""
        return {**self._args, **self.env}

    def image(self) -> str:
        """Return the image of FROM, before any step is asked for."""
        while self._instructions:
            self._line, word, rest = self._instructions.pop(0)
            if word == "FROM":
                parts = self._words(rest)
                if len(parts) not in (1, 3) or parts[0].startswith("--"):
                    raise self.error(f"FROM {rest} isn't supported", "FROM IMAGE")
                self._args.clear()
                return parts[0]
            if word != "ARG":
                raise self.error(f"{word} stands before FROM", "begin with FROM IMAGE")
            self._arg(rest)
        raise self.error("there is no FROM", "begin with FROM IMAGE")

    def steps(self) -> Iterator[tuple[str, list[str] | str]]:
        """Give the steps in order. The caller does each before it asks for the next."""
        for line, word, rest in self._instructions:
            self._line = line
            if word == "RUN":
                if rest.startswith("--") or "<<" in rest:
                    raise self.error("options of RUN and here documents aren't supported", "write a plain RUN COMMAND")
                yield word, self._list(rest) or rest
            elif word == "COPY":
                if rest.startswith("--"):
                    raise self.error(f"COPY has no option {rest.split()[0]!r} here", "RUN chown or chmod afterwards")
                *sources, target = self._list(rest) or self._words(rest)
                for source in self._sources(sources):
                    into = target.endswith("/") or len(sources) > 1
                    name = f"{target}/{source.name}" if into and not source.is_dir() else target
                    yield "TREE" if source.is_dir() else "FILE", [str(source), str(PurePosixPath(self.workdir, name))]
            elif word == "WORKDIR":
                self.workdir = str(PurePosixPath(self.workdir, *self._words(rest)))
                yield word, [self.workdir]
            elif word == "ENV":
                self.env.update(self._pairs(rest))
            elif word == "ARG":
                self._arg(rest)
            elif word == "USER":
                (self.user,) = self._words(rest)
                self.owner = self.user if self.user.partition(":")[0] in ("root", "0") else self.owner
            elif word == "FROM":
                raise self.error("a second FROM isn't supported", "build each stage from a Dockerfile of its own")
            elif word not in _PASSED_OVER:
                raise self.error(
                    f"{word} isn't supported", _INSTEAD.get(word, "FROM, RUN, COPY, ENV, WORKDIR, USER, ARG")
                )

    def _read(self, text: str) -> Iterator[tuple[int, str, str]]:
        lines = enumerate(text.splitlines(), 1)
        for number, line in lines:
            whole = line.strip()
            if not whole or whole.startswith("#"):
                continue
            while whole.endswith("\\"):
                _, more = next(lines, (0, ""))
                whole = whole[:-1] + ("\\" if more.lstrip().startswith("#") else more.strip())
            word, _, rest = whole.partition(" ")
            yield number, word.upper(), rest.strip()

    def _words(self, text: str) -> list[str]:
        if _LITERAL.search(text):
            raise self.error("a $ that stands for itself isn't supported", "set the variable in a RUN")
        try:
            return [self._expanded(word) for word in shlex.split(text)]
        except ValueError as error:
            raise self.error(str(error), "close the quotation") from None

    def _expanded(self, text: str) -> str:
        known = {**self.base, **self.variables()}
        return _VARIABLE.sub(lambda found: known.get(found[1] or found[2]) or found[3] or "", text)

    def _list(self, text: str) -> list[str]:
        """Return the items of a JSON list of texts; nothing of another text."""
        try:
            found: list[object] = json.loads(text) if text.startswith("[") else []
        except ValueError:
            return []
        return [self._expanded(str(one)) for one in found]

    def _pairs(self, text: str) -> dict[str, str]:
        name, _, value = text.partition(" ")
        if value and "=" not in name:  # ENV NAME a value with spaces
            return {name: " ".join(self._words(value))}
        return dict(self._pair(word) for word in self._words(text))

    def _pair(self, word: str) -> tuple[str, str]:
        name, equals, value = word.partition("=")
        if not equals:
            raise self.error(f"{word!r} is not NAME=VALUE", "ENV NAME=VALUE")
        return name, value

    def _arg(self, text: str) -> None:
        for word in self._words(text):
            name, equals, value = word.partition("=")
            if name in self._given or equals:
                self._args[name] = self._given.get(name, value)

    def _sources(self, patterns: list[str]) -> list[Path]:
        found: list[Path] = []
        for pattern in patterns:
            below = os.path.normpath(pattern.lstrip("/"))
            matches = sorted(self.directory.glob(below)) if below != "." else [self.directory]
            if not matches:
                raise self.error(f"COPY finds no {pattern!r} in {self.directory}", "name a file of the directory")
            found += matches
        for path in found:
            if not path.resolve().is_relative_to(self.directory):  # a link of a stranger's, to a key of the host
                raise self.error(f"{path} leads out of {self.directory}", "copy it into the directory first")
        return found

    def _ignored(self) -> tuple[str, ...]:
        try:
            lines = (self.directory / ".dockerignore").read_text("utf-8").splitlines()
        except FileNotFoundError:
            return ()
        patterns = [line.strip().strip("/") for line in lines if line.strip() and not line.startswith("#")]
        for pattern in patterns:
            if "/" in pattern or pattern.startswith("!"):
                raise InvalidArgumentError(
                    f".dockerignore: {pattern!r} isn't the name of a file", hint="name files alone"
                )
        return tuple(patterns)
