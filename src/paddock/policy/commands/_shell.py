"""Reads a shell line as the commands that it starts, as far as the text alone shows.

It is conservative: anything uncertain counts as unclear. A better parser wouldn't decide more, because for every
command that it understands there is a spelling that starts another.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from posixpath import basename

import msgspec

MOST_CHARACTERS = 64 << 10
SHELLS = frozenset({"sh", "bash", "dash", "ash"})
_KEYWORDS = frozenset({
    "if", "then", "else", "elif", "fi", "for", "while", "until", "do", "done", "case", "esac", "in",
    "function", "select", "time", "coproc", "[[", "]]", "!", "{", "}"
})  # fmt: skip
# They start their arguments, change the meaning of later words, or read commands from elsewhere.
_STARTERS = frozenset({
    "eval", "source", ".", "exec", "command", "builtin", "trap", "alias", "unalias", "export", "declare",
    "typeset", "readonly", "local", "enable", "hash", "set", "unset", "shopt", "let", "read", "mapfile",
    "readarray", "getopts", "fc", "bind", "compgen", "complete", "env", "xargs", "nohup", "sudo", "su",
    "doas", "nice", "ionice", "chrt", "timeout", "setsid", "stdbuf", "watch", "parallel", "chroot", "unshare",
    "nsenter", "flock", "strace", "ltrace", "busybox", "ssh", "zsh", "ksh", "mksh", "fish", "csh", "tcsh"
})  # fmt: skip
_SEARCHERS = {  # with such a word they may, or may look into an index that does
    "find": ("-exec", "-ok"),
    "fd": ("-x", "-X", "--exec"),
    "printf": ("-v",),
    "test": ("-v", "-R"),
    "[": ("-v", "-R"),
    "wait": ("-p",),
    "jobs": ("-x",),
}
_HARMLESS_SET = re.compile(r"[-+][abefhmnoptuvxBCEHPT]+|pipefail|errexit|nounset|xtrace|--")
_NAMED_OPTIONS = frozenset({"pipefail", "errexit", "nounset", "xtrace", "globstar", "nullglob"})
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(?:\[[^]]*\])?\+?=")
_OPEN = frozenset("*?[]{}~")
_ESCAPED_IN_QUOTES = ("$", "`", '"', "\\", "\n")
_OPERATORS = ("&&", "||", "|&", ";", "&", "|", "\n")
_REDIRECTION = re.compile(r"&>|[0-9]*(?:>>|>\||>&|<&|<>|>|<)")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*|[0-9@*#?$!-]|\{[A-Za-z_][A-Za-z0-9_]*\}")


class Command(msgspec.Struct, frozen=True, kw_only=True):
    """A command of a line. `words` are certain. `open`: more words follow, which only the shell knows."""

    words: tuple[str, ...]
    open: bool = False


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """The commands of a line.

    `unclear` names the part that could start another command. It is None if `commands` are all.
    """

    commands: tuple[Command, ...]
    unclear: str | None = None


def read_argv(argv: Sequence[str]) -> Line:
    """Read which commands an execution of these words starts: the line of `sh -c LINE`, or the command itself."""
    if not argv:
        return Line(commands=())
    itself = Command(words=tuple(argv))
    if basename(argv[0]) not in SHELLS:
        return Line(commands=(itself,), unclear=_starts_others(itself))
    text, unclear = _line_of(argv)
    if text is None:
        return Line(commands=(itself,), unclear=unclear)
    return read_line(text)


def _line_of(argv: Sequence[str]) -> tuple[str | None, str | None]:
    """Return the line that a shell's words run. If it isn't certain, return None and the reason."""
    rest, has_line = list(argv[1:]), False
    while rest and re.fullmatch(r"-[a-zA-Z]+", rest[0]):
        option = rest.pop(0)
        has_line = has_line or "c" in option
        if "s" in option:
            return None, f"{argv[0]} reads commands from elsewhere"
        for _ in range(option.count("o") + option.count("O")):
            if not rest or rest[0] not in _NAMED_OPTIONS:
                return None, f"an option of {argv[0]}"
            rest.pop(0)
    if not rest or rest[0].startswith(("-", "+")):
        return None, f"{argv[0]} reads commands from elsewhere"
    return (rest[0], None) if has_line else (None, None)


def read_line(text: str) -> Line:
    if len(text) > MOST_CHARACTERS:
        return Line(commands=(), unclear=f"a line of more than {MOST_CHARACTERS} characters")
    if "\0" in text:
        return Line(commands=(), unclear="a line with a zero byte")
    reader = _Reader(text)
    unclear: str | None = None
    try:
        reader.read()
    except _Unclear as why:
        unclear = str(why)
        reader.end_command()
    commands: list[Command] = []
    for command in reader.commands:
        inner = _inner(command)
        commands += inner.commands
        unclear = unclear or inner.unclear
    return Line(commands=tuple(commands), unclear=unclear)


def _inner(command: Command) -> Line:
    """Read a command of a line. If it is a shell, read the commands that the shell starts."""
    if command.words and basename(command.words[0]) in SHELLS:
        if command.open:
            return Line(commands=(command,), unclear=f"a {command.words[0]} with words that only the shell knows")
        return read_argv(command.words)
    return Line(commands=(command,), unclear=_starts_others(command))


def _starts_others(command: Command) -> str | None:
    if not command.words:
        return "a program whose name only the shell knows"
    first, rest = basename(command.words[0]), command.words[1:]
    if first == "set" and not command.open and all(map(_HARMLESS_SET.fullmatch, rest)):
        return None
    if first in _SEARCHERS:
        asked = command.open or any(word.startswith(_SEARCHERS[first]) for word in rest)
        return f"{first} may start something else" if asked else None
    return f"{first} may start something else" if first in _STARTERS else None


class _Unclear(Exception):
    """A part of a line whose meaning isn't certain. The message says why."""


class _Reader:
    def __init__(self, text: str) -> None:
        self._text, self._at = text, 0
        self.commands: list[Command] = []
        self._words: list[str] = []
        self._open = self._any = False

    def read(self) -> None:
        text = self._text
        while self._at < len(text):
            operator = next((one for one in _OPERATORS if text.startswith(one, self._at)), None)
            redirection = _REDIRECTION.match(text, self._at)
            if redirection is not None:
                self._redirect(redirection)
            elif operator is not None:
                self._at += len(operator)
                self.end_command()
            elif text[self._at] in " \t":
                self._at += 1
            elif text.startswith("\\\n", self._at):
                self._at += 2
            elif text[self._at] == "#":
                end = text.find("\n", self._at)
                self._at = len(text) if end < 0 else end
            elif text[self._at] in "()":
                raise _Unclear("a list in brackets, or a function")
            else:
                self._take(self._word())
        self.end_command()

    def end_command(self) -> None:
        if self._any:
            self.commands.append(Command(words=tuple(self._words), open=self._open))
        self._words, self._open, self._any = [], False, False

    def _take(self, word: str | None) -> None:
        first = not self._any
        self._any = True
        if word is None:
            self._open = True
        elif not self._open:
            self._words.append(word)
            if first and _ASSIGNMENT.match(word):
                raise _Unclear("a variable is set")
            if first and word in _KEYWORDS:
                raise _Unclear(f"the keyword {word}")

    def _redirect(self, match: re.Match[str]) -> None:
        if match[0] == "&>":
            raise _Unclear("`&>`, which shells read differently")
        if match[0].endswith("<") and self._text.startswith("<", match.end()):
            raise _Unclear("a here-document")
        self._at = match.end()
        while self._at < len(self._text) and self._text[self._at] in " \t":
            self._at += 1
        if self._at >= len(self._text) or self._text[self._at] in "\n;&|<>()":
            raise _Unclear("a redirection to something else than a file")
        self._word()

    def _word(self) -> str | None:
        """Read a word. Return None if only the shell knows it. Raise _Unclear if it starts something."""
        text, made, known, is_quoted = self._text, "", True, False
        while self._at < len(text):
            character = text[self._at]
            if character in " \t\n;&|<>()" and not is_quoted:
                break
            self._at += 1
            if character == '"':
                is_quoted = not is_quoted
            elif character == "`":
                raise _Unclear("a command in backquotes")
            elif character == "$":
                self._expansion()
                known = False
            elif character == "\\" and (not is_quoted or text.startswith(_ESCAPED_IN_QUOTES, self._at)):
                made += text[self._at : self._at + 1].replace("\n", "")
                self._at += 1
            elif character == "'" and not is_quoted:
                end = text.find("'", self._at)
                if end < 0:
                    raise _Unclear("a quote that is not closed")
                made += text[self._at : end]
                self._at = end + 1
            else:
                known = known and (is_quoted or character not in _OPEN or self._closed(character))
                made += character
        if is_quoted:
            raise _Unclear("a quote that is not closed")
        return made if known else None

    def _closed(self, character: str) -> bool:
        """Tell whether a character that may mean something means nothing here: `[` as a word, a `~` in the middle."""
        before = self._text[self._at - 2] if self._at > 1 else " "
        after = self._text[self._at] if self._at < len(self._text) else " "
        alone = before in " \t\n;&|" and after in " \t\n;&|"
        return (character in "[]{}" and alone) or (character == "~" and before not in " \t\n;&|=:")

    def _expansion(self) -> None:
        """Read the text after a `$`. Plain variables start no command."""
        match = _VARIABLE.match(self._text, self._at)
        if match is None:
            following = self._text[self._at : self._at + 1]
            if following in ("", " ", "\t", "\n", '"', "/", ".", ","):
                return
            raise _Unclear("a command or an expression in the place of a word")
        self._at = match.end()
