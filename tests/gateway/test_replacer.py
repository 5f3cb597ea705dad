"""Whatever pieces a stream comes in, what is found in it is what is found in the whole."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from paddock.gateway.protocols.replacer import Needles, Replacer

# Few letters, so that needles overlap, repeat and begin each other.
words = st.text("ab", min_size=1, max_size=6).map(str.encode)
texts = st.text("abc", max_size=60).map(str.encode)


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({cut % (len(data) + 1) for cut in cuts})
    return [data[a:b] for a, b in zip([0, *places], [*places, len(data)], strict=True)]


@given(st.lists(words, min_size=1, max_size=5), texts, st.lists(st.integers(0, 1000), max_size=12))
def test_however_it_is_cut_the_same_comes_out(needles: list[bytes], data: bytes, cuts: list[int]) -> None:
    known = Needles(needles)
    replacer = Replacer(known, lambda found: b"<%d>" % len(found))
    out = b"".join([*map(replacer.feed, pieces(data, cuts)), replacer.end()])
    assert out == known.replaced(data, lambda found: b"<%d>" % len(found))


@given(st.lists(words, min_size=1, max_size=5), texts, st.lists(st.integers(0, 1000), max_size=12))
def test_nothing_is_held_back_but_what_may_become_a_needle(needles: list[bytes], data: bytes, cuts: list[int]) -> None:
    known = Needles(needles)
    replacer = Replacer(known, lambda found: found)
    fed = came = b""
    for piece in pieces(data, cuts):
        fed, came = fed + piece, came + replacer.feed(piece)
        held = fed[len(came) :]
        assert fed.startswith(came)
        assert not held or any(needle.startswith(held) and needle != held for needle in known._all)


def test_without_needles_all_passes_at_once() -> None:
    assert Replacer(Needles(()), lambda found: b"").feed(b"anything") == b"anything"
