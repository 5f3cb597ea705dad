"""The canonical form of host names: lower case, A-labels, without a final dot, and never an address."""

from __future__ import annotations

import re
import unicodedata
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from publicsuffixlist import PublicSuffixList

_LABEL = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
_TOGETHER = (  # scripts that are written together; each with Latin
    frozenset({"HIRAGANA", "KATAKANA", "CJK", "KATAKANA-HIRAGANA"}),
    frozenset({"CJK", "BOPOMOFO"}),
    frozenset({"CJK", "HANGUL"}),
)


class NotAName(ValueError):
    """Why, in words that follow the name."""


def canonical_name(text: str) -> str:
    """Return the canonical form of a host name.

    Raises NotAName.

    The form is IDNA 2008 with the mapping of UTS 46. Texts that resolvers take for an address (`127.1`, `0x7f.1`,
    `2130706433`, `①②⑦.0.0.1`) aren't names, even where `ipaddress` refuses them.
    """
    name = text[:-1] if text.endswith((".", "。")) else text
    if not name.isascii():
        name = _encoded(name)
    name = name.lower()
    if not name:
        raise NotAName("is empty")
    labels = name.split(".")
    if _NUMBER.fullmatch(labels[-1]):
        raise NotAName("is an address to a resolver, not a name")
    if len(name) > 253:
        raise NotAName("is longer than 253 characters")
    for label in labels:
        if not _LABEL.fullmatch(label):
            raise NotAName(_wrong_label(label))
        if label[2:4] == "--" and not label.startswith("xn--"):
            raise NotAName(f"has a label {label!r} that is kept for other encodings")
        if label.startswith("xn--"):
            _check_a_label(label)
    return name


def check_wildcard(suffix: str) -> None:
    """Check a canonical `*.suffix`. Raise NotAName if anyone can have a name below it."""
    if _suffixes().is_public(suffix):
        raise NotAName(f"covers the hosts of strangers: anyone can have a name below {suffix!r}")


@cache
def _suffixes() -> PublicSuffixList:
    from publicsuffixlist import PublicSuffixList  # reads its list: 0.1 s, for documents with a wildcard alone

    return PublicSuffixList()


def _encoded(name: str) -> str:
    import idna

    for label in re.split("[.\u3002\uff0e\uff61]", unicodedata.normalize("NFKC", name)):
        _check_scripts(label)
    try:
        return idna.encode(name, uts46=True, std3_rules=True, transitional=False).decode("ascii")
    except (idna.IDNAError, UnicodeError) as error:
        raise NotAName(f"is not a valid international name: {error}") from None


def _check_a_label(label: str) -> None:
    import idna

    try:
        shown = idna.decode(label)
    except (idna.IDNAError, UnicodeError) as error:
        raise NotAName(f"has a label {label!r} that decodes to nothing: {error}") from None
    _check_scripts(shown)


def _check_scripts(label: str) -> None:
    """Refuse letters of two alphabets in one label, because people mistake them for each other. Raises NotAName."""
    scripts = {unicodedata.name(letter, "?").split(" ")[0] for letter in label if letter.isalpha()}
    foreign = scripts - {"LATIN", "FULLWIDTH"}
    if len(scripts - {"FULLWIDTH"}) > 1 and not any(foreign <= group for group in _TOGETHER):
        raise NotAName(f"mixes the scripts {', '.join(sorted(scripts))} in {label!r}")


def _wrong_label(label: str) -> str:
    if not label:
        return "has an empty label"
    if len(label) > 63:
        return "has a label longer than 63 characters"
    if "_" in label:
        return f"has a `_` in {label!r}; names of hosts have letters, digits and `-` only"
    return f"has a label {label!r}; letters, digits and `-` inside are what a label has"
