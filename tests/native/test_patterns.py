"""Patterns: the modules of the native guest under sanitizers, beside Python's own."""

from __future__ import annotations

import fnmatch
import functools
import re
import subprocess
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paddock.backends.guest._regex import compile_pattern
from paddock.errors import InvalidArgumentError
from paddock.wire.guest import Grep
from tests.native.driver import ROOT, build_module

EXAMPLES = 5 * settings().max_examples
SOURCES = ("arena", "bytes", "glob", "message", "regex", "tiny", "utf8")


class Probe:
    """The program of probe_text.c."""

    def __init__(self, program: Path) -> None:
        self._process = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def ask(self, kind: bytes, first: bytes, second: bytes) -> bytes:
        to, answer = _pipes(self._process)
        to.write(kind + len(first).to_bytes(4, "little") + first + len(second).to_bytes(4, "little") + second)
        to.flush()
        size = answer.read(4)
        assert len(size) == 4, f"the program has ended: {kind!r} {first!r} {second!r}"
        return answer.read(int.from_bytes(size, "little"))

    def glob(self, pattern: str, name: str) -> bool:
        return self.ask(b"g", encode(pattern), encode(name)) == b"+"

    def regex(self, pattern: str, text: str) -> bool | str:
        """Whether it matches, or why it is refused."""
        try:
            program = Grep(**compile_pattern(pattern)._asdict())
        except InvalidArgumentError as error:
            return str(error).removeprefix("not a regular expression of this guest's: ")
        answer = self.ask(b"r", program.pack(), encode(text))
        assert answer in (b"+", b"-")
        return answer == b"+"

    def close(self) -> None:
        with self._process:
            _pipes(self._process)[0].close()
        assert self._process.returncode == 0


def _pipes(process: subprocess.Popen[bytes]) -> tuple[IO[bytes], IO[bytes]]:
    assert process.stdin is not None
    assert process.stdout is not None
    return process.stdin, process.stdout


def encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


@pytest.fixture(scope="module")
def probe(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Probe]:
    program = tmp_path_factory.mktemp("probe") / "probe"
    build = build_module()
    native = ROOT / "native"
    sources = [*(native / f"{name}.c" for name in SOURCES), ROOT / "tests" / "native" / "probe_text.c"]
    command = [*build.find_compiler(), *build.COMMON, *build.HOSTED, f"-I{native}", "-o", program, *sources]
    subprocess.run(command, check=True)
    probe = Probe(program)
    yield probe
    probe.close()


def test_the_probe_is_compiled_without_a_library_too(tmp_path: Path) -> None:
    """Of what is no part of the agent's start, nothing needs the C library."""
    build = build_module()
    for name in ("glob", "regex", "tar_read", "tar_write", "utf8", "walk", "trail"):
        source = ROOT / "native" / f"{name}.c"
        freestanding = ["-ffreestanding", "-fno-builtin", "-Os", "-c"]
        command = [*build.find_compiler(), *build.COMMON, *freestanding, source, "-o", tmp_path / "object"]
        subprocess.run(command, cwd=ROOT / "native", check=True)


# glob

CHARACTERS = "ab*?[]!-^\\.\u00e9\udcff0"
QUIRK = re.compile(r"\[(.-.)+!", re.DOTALL)
"""Of a set that begins with a range that runs backwards, fnmatch forgets the range, and takes a `!` behind it for the
negation. We do not."""


@functools.cache
def as_fnmatch(pattern: str) -> re.Pattern[str]:
    return re.compile(fnmatch.translate(pattern))


@settings(max_examples=EXAMPLES)
@given(st.text(CHARACTERS, max_size=12), st.text(CHARACTERS + "\n", max_size=8))
def test_globs_match_what_fnmatch_does(probe: Probe, pattern: str, name: str) -> None:
    if not QUIRK.search(pattern):
        assert probe.glob(pattern, name) == bool(as_fnmatch(pattern).match(name))


def test_a_glob_of_many_stars_takes_no_time(probe: Probe) -> None:
    assert not probe.glob("a*" * 2000 + "b", "a" * 255)
    assert probe.glob("*" * 4000, "")


# regular expressions

ATOMS = st.sampled_from(
    [
        *"abcA1_\u00e9 \n-{}]",
        *(
            ".",
            r"\d",
            r"\w",
            r"\s",
            r"\D",
            r"\W",
            r"\S",
            "[a-c]",
            "[^b]",
            "[]a]",
            "[^]a-]",
            r"[\d-]",
            r"[\w.]",
            r"[^\s]",
        ),
        *(r"\x61", r"\.", "^", "$", r"\b", r"\B", r"\A", r"\Z", "[A-Z\u00e9]", r"\101", r"\0", "a{", "{,}", r"[^\W]"),
        *(r"\u00e9", r"[\b]", "[--a]", "[a-]", "(?#x)", r"\n", "[\u00e0-\u00ff]", "\udcff", "[\udc80-\udcff]"),
    ]
)
QUANTIFIERS = st.sampled_from(
    [
        *[""] * 3,
        *"*+?",
        "*?",
        "+?",
        "??",
        "{2}",
        "{1,2}",
        "{,2}",
        "{1,}",
        "{0}",
        "{0,}",
        "{2,3}?",
        "{2,1}",
        "{}",
        "{a}",
        "**",
    ]
)
GROUPS = st.sampled_from(["(", "(?:", "(?P<n>", "(?i:", "(?s:", "(?m:", "(?-i:", "(?i-s:", "(?a:"])


def larger(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map("|".join),
        st.tuples(GROUPS, inner, QUANTIFIERS).map(lambda parts: f"{parts[0]}{parts[1]}){parts[2]}"),
    )


PATTERNS = st.tuples(
    st.sampled_from(["", "", "", "(?i)", "(?s)", "(?m)", "(?im)"]),
    st.recursive(st.tuples(ATOMS, QUANTIFIERS).map("".join), larger, max_leaves=8),
).map("".join)
TEXTS = st.text("abcABC1_\u00e9 \n-.\udcff{}", max_size=10)
OURS = ("possessive", "POSIX", "back reference", "look", "atomic", "conditional", "flag", "pattern too")
"""What Python knows and we refuse."""


def agree(probe: Probe, pattern: str, text: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            wanted = re.compile(pattern, re.ASCII)
        except (re.error, OverflowError):
            wanted = None
    answer = probe.regex(pattern, text)
    if isinstance(answer, str):
        assert wanted is None or answer.startswith(OURS), answer
    else:
        assert wanted is not None, "Python refuses it"
        assert answer == bool(wanted.search(text))


@settings(max_examples=EXAMPLES)
@given(PATTERNS, TEXTS)
def test_a_regex_matches_what_re_does(probe: Probe, pattern: str, text: str) -> None:
    agree(probe, pattern, text)


@settings(max_examples=EXAMPLES)
@given(st.text("ab(){}[]*+?|\\^$.,-01?:P<>=!#is", max_size=10), TEXTS)
def test_what_is_a_regex_to_re_is_one_to_us(probe: Probe, pattern: str, text: str) -> None:
    agree(probe, pattern, text)


@settings(max_examples=EXAMPLES)
@given(st.binary(max_size=40), st.binary(max_size=40))
def test_bytes_that_are_no_text_harm_nothing(probe: Probe, pattern: bytes, text: bytes) -> None:
    for kind in (b"r", b"g"):
        probe.ask(kind, pattern, text)


REFUSED = {
    r"(a)\1": "back reference",
    "(?P<n>a)(?P=n)": "back reference",
    "(?=a)": "look ahead",
    "(?!a)": "look ahead",
    "(?<=a)": "look behind",
    "(?<!a)": "look behind",
    "(?>a)": "atomic group",
    "(a)(?(1)b)": "conditional group",
    "a*+": "possessive repetition",
    "[[:alpha:]]": "POSIX class ([:name:])",
    "(?u:a)": "flag (?u) or (?L)",
    "(" * 3000 + ")" * 3000: "groups nested too deeply",
    "(a{1000}){1000}": "pattern too large",
    "((a{1,200}){1,200}){1,20}": "pattern too large",
    "a{4294967296}": "the repetition number is too large",
    "(){99999}a{5000}": "pattern too large",
    "a" * 9000: "pattern too large",
    "[a\u0100]" + "".join(f"[{chr(0x1000 + n)}-\u2fff\u4000]" for n in range(1200)): "pattern too large",
}


def test_what_is_no_part_of_the_language_is_refused_by_name(probe: Probe) -> None:
    assert {pattern: probe.regex(pattern, "") for pattern in REFUSED} == REFUSED
    page = (ROOT / "docs" / "patterns.md").read_text()
    for name in ("back reference", "look ahead", "look behind", "atomic group", "POSIX class", "flag (?u) or (?L)"):
        assert name in page


@pytest.mark.parametrize(
    "broken",
    [
        Grep(),
        Grep(steps=(0, 0)),
        Grep(steps=(4, 0, 0)),
        Grep(steps=(1, 0, 0)),
        Grep(steps=(1, 1, 0, 0, 0, 0), ranges=(97, 97)),
        Grep(steps=(1, 0, 2, 0, 0, 0), ranges=(97, 97)),
        Grep(steps=(1, 0, 0, 0, 0, 0), ranges=(97,)),
        Grep(steps=(2, 0, 1)),
        Grep(steps=(2, 1, 0)),
        Grep(steps=(3, 0, 0)),
        Grep(steps=(3, 7, 0, 0, 0, 0)),
        Grep(steps=(0, 0, 0), begins=(1,)),
    ],
)
def test_a_program_that_leaves_itself_is_refused(probe: Probe, broken: Grep) -> None:
    assert probe.ask(b"r", broken.pack(), b"text") == b"refused"


WEAPONS = [
    "(a*)*b",
    "(a|a)*b",
    "(a|aa)+$b",
    "(a?){500}a{500}b",
    "(.*)(.*)(.*)(.*)(.*)b",
    "((a*)*)*b",
    "(x+x+)+y",
    "^(a+)+$b",
]


def test_no_pattern_takes_more_than_its_length_times_the_texts(probe: Probe) -> None:
    """A machine that tries one way after the other would not come back."""
    for pattern in WEAPONS:
        assert probe.regex(pattern, "a" * 20_000 + "x" * 20_000) is False
    assert probe.regex("[^" + "".join(chr(0x1000 + 2 * n) for n in range(2000)) + "]{1000}z", "a" * 5_000) is False
