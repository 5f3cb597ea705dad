"""Policy rules about files that a request names by path. The mounts, not these rules, take care of links."""

from __future__ import annotations

import re
from collections.abc import Iterator
from posixpath import join, normpath

from paddock.model import PolicyDocument
from paddock.model.policy import CommandRules, FileRules

from ._commands import Commands, Judgement

MOST_PATHS = 256
_OWN = Judgement(verdict="allow", rule="files", reason="no rule is about it")


class Files:
    """Judges paths. Relative paths are relative to `workdir`, and `home` replaces `~`."""

    def __init__(self, rules: FileRules, *, workdir: str, home: str) -> None:
        self._rules, self._workdir, self._home = rules, workdir, home
        self._patterns = tuple(_pattern(self.absolute(path)) for path in rules.protect)

    @property
    def fixed(self) -> tuple[str, ...]:
        """Return the protected absolute paths without a pattern. A sandbox can have mounts over those."""
        return tuple(self.absolute(path) for path in self._rules.protect if "*" not in path)

    def can_mount(self, verdict: Judgement) -> bool:
        """Tell whether the rule of a verdict names one path instead of a pattern."""
        return verdict.rule in (
            f"files.protect[{index}]" for index, path in enumerate(self._rules.protect) if "*" not in path
        )

    def write(self, path: str) -> Judgement:
        """Decide on a request that writes or changes a path."""
        return self._protected(path, above=False)

    def remove(self, path: str) -> Judgement:
        """Decide on a request that removes a path, with everything below."""
        found = self._protected(path, above=True)
        if found.verdict == "allow" and "delete" in self._rules.approve:
            return Judgement(verdict="approve", rule="files.approve", reason=f"{path!r} is to be deleted")
        return found

    def replace(self, path: str) -> Judgement:
        """Decide on a request that moves a path, with everything below, or unpacks an archive there. The names in an
        archive aren't known yet."""
        return self._protected(path, above=True)

    def _protected(self, path: str, *, above: bool) -> Judgement:
        asked = self.absolute(path)
        for index, pattern in enumerate(self._patterns):
            if _meets(asked, pattern, above=above):
                kept = self._rules.protect[index]
                return Judgement(
                    verdict="deny", rule=f"files.protect[{index}]", reason=f"{path!r}: {kept!r} stays as it is"
                )
        return _OWN

    def absolute(self, path: str) -> str:
        """Normalize a path of a request. Links are not looked at."""
        if path == "~" or path.startswith("~/"):
            path = self._home + path[1:]
        # Two slashes at the beginning would stay (POSIX leaves their meaning open).
        return "/" + normpath(join(self._workdir, path)).lstrip("/")


_Pattern = tuple[re.Pattern[str], ...]


def _pattern(path: str) -> _Pattern:
    """Compile one pattern for each part. `**` means the same as `*`."""
    return tuple(re.compile(".*".join(map(re.escape, part.split("*"))), re.DOTALL) for part in _parts(path))


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part]


def _meets(path: str, pattern: _Pattern, *, above: bool) -> bool:
    """Tell whether the path or a directory above it matches the pattern.

    `above`: also if a match may lie below the path.
    """
    parts = _parts(path)
    deep = above or len(parts) >= len(pattern)
    return deep and all(one.fullmatch(part) for one, part in zip(pattern, parts, strict=False))


def file_faults(rules: FileRules) -> Iterator[tuple[int, str]]:
    if len(rules.protect) > MOST_PATHS:
        yield MOST_PATHS, f"more than {MOST_PATHS} paths"
    for index, path in enumerate(rules.protect[:MOST_PATHS]):
        if not path or "\0" in path or len(path) > 4096:
            yield index, "a path has characters, not too many, and no zero byte"
        elif ".." in path.split("/"):
            yield index, "a path with `..` in it: write where it leads"
        elif not _parts(path) or path in ("~", "~/", ".", "./"):
            yield index, "everything: a sandbox in which nothing can be changed is of no use"


_WORKDIR, _HOME = "/workspace", "/home/user"  # as in the templates that come with paddock


def explain_command(document: PolicyDocument, line: str) -> tuple[Judgement, dict[str, str]]:
    """Explain the verdict on a shell line, and which requests it covers."""
    return Commands(document.commands or CommandRules()).judge_line(line), {
        "enforced": "on requests from outside (exec, run, sh, the SDK)",
        "advisory": "on programs that a command starts: paddock doesn't check those",
    }


def explain_file(document: PolicyDocument, path: str, *, delete: bool) -> tuple[Judgement, dict[str, str]]:
    """Explain the verdict on a path."""
    files = Files(document.files or FileRules(), workdir=_WORKDIR, home=_HOME)
    verdict = files.remove(path) if delete else files.write(path)
    enforcement = {"enforced": "on requests from outside (write, cp, rm, the SDK)"}
    if verdict.verdict == "approve":
        enforcement["advisory"] = "on programs inside: they can delete it without an approval"
    elif verdict.verdict == "deny" and not files.can_mount(verdict):
        enforcement["advisory"] = "on programs inside: a pattern can't be mounted read-only"
    elif verdict.verdict == "deny":
        enforcement["inside"] = "enforced, by a read-only mount, if it is there when the sandbox is made"
    return verdict, enforcement
