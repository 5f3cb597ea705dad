"""A placeholder becomes its secret where policy and binding agree; on its way to anywhere else it is a finding."""

from __future__ import annotations

import base64
import gzip
import json
from collections import deque
from urllib.parse import parse_qs

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddock.errors import InvalidArgumentError
from paddock.gateway.protocols.gzip import Undecodable
from paddock.gateway.rules.redaction import Redaction, ResponseRedaction, forms
from paddock.gateway.rules.secrets import BoundSecret, SecretBook, Unavailable, mint
from paddock.gateway.rules.substitution import Misdirected, Substitution
from paddock.model import Binding, SecretValue, Target
from tests.gateway.rig import authorized

VALUE = b'v"\\ /&=%+\xc3\xa4-sixteen'
HERE = Target("api.test", 443)
EVERYWHERE = Binding(host="api.test", header="X-Key", basic=True, query="key", body=True)
HOLDER = mint()
HELD = HOLDER.encode()
JSON = [(b"Content-Type", b"application/json; charset=utf-8")]


def bound(*bindings: Binding, value: bytes | None = VALUE, expires_at: float | None = None) -> BoundSecret:
    return BoundSecret(
        name="KEY",
        placeholder=HOLDER,
        bindings=bindings or (EVERYWHERE,),
        value=None if value is None else SecretValue(value),
        expires_at=expires_at,
    )


def book(*bindings: Binding, value: bytes | None = VALUE, expires_at: float | None = None) -> SecretBook:
    return SecretBook([bound(*bindings, value=value, expires_at=expires_at)], clock=lambda: 100.0)


def swap(
    secrets: SecretBook | None = None,
    *,
    target: Target = HERE,
    scheme: str = "https",
    method: str = "POST",
    allowed: tuple[str, ...] = ("KEY",),
) -> Substitution:
    return Substitution(book() if secrets is None else secrets, authorized(target, scheme, method, allowed))


def basic(user: bytes, password: bytes) -> bytes:
    return b"Basic " + base64.b64encode(user + b":" + password)


def whole(body: bytes, kind: bytes = b"application/json", secrets: SecretBook | None = None) -> bytes:
    stream = swap(secrets).body([(b"Content-Type", kind)])
    assert stream is not None
    return stream.feed(body) + stream.end()


def test_a_header_and_a_password_are_swapped() -> None:
    one = swap(book(value=b"plain-value"))
    got = dict(one.fields([(b"x-key", b"token " + HELD), (b"Authorization", basic(b"me", HELD)), (b"A", b"b")]))
    assert got == {b"x-key": b"token plain-value", b"Authorization": basic(b"me", b"plain-value"), b"A": b"b"}


def test_a_query_parameter_is_swapped_and_encoded() -> None:
    target = swap().target(f"/path?a=1&key={HOLDER}&b")
    assert parse_qs(target.partition("?")[2])["key"] == [VALUE.decode()]
    assert target.startswith("/path?a=1&key=") and target.endswith("&b")  # noqa: PT018


def test_a_body_is_swapped_as_its_type_wants_it() -> None:
    assert json.loads(whole(json.dumps({"a": HOLDER}).encode())) == {"a": VALUE.decode()}
    form = whole(f"x=1&y={HOLDER}".encode(), b"application/x-www-form-urlencoded")
    assert parse_qs(form.decode())["y"] == [VALUE.decode()]
    with pytest.raises(Unavailable, match="cannot be written"):
        whole(HELD, b"text/plain")


@given(st.lists(st.integers(0, 500), max_size=8), st.booleans())
def test_a_body_in_any_pieces_plain_or_gzip(cuts: list[int], zipped: bool) -> None:
    sent = json.dumps({"first": HOLDER, "then": [HOLDER, "pdk_no"], "last": HOLDER[:-1]}).encode()
    data = gzip.compress(sent) if zipped else sent
    stream = swap().body([*JSON, (b"Content-Encoding", b"gzip" if zipped else b"identity")])
    assert stream is not None
    assert stream.rewrites
    places = sorted({cut % (len(data) + 1) for cut in cuts})
    parts = [data[a:b] for a, b in zip([0, *places], [*places, len(data)], strict=True)]
    came = b"".join([*map(stream.feed, parts), stream.end()])
    got = json.loads(gzip.decompress(came) if zipped else came)
    assert got == {"first": VALUE.decode(), "then": [VALUE.decode(), "pdk_no"], "last": HOLDER[:-1]}


def said(one: Substitution, message: bytes) -> bytes:
    filter = one.message(message)
    return filter.feed(message) + filter.end()


def test_a_message_of_a_web_socket_is_swapped() -> None:
    assert json.loads(said(swap(), json.dumps({"op": HOLDER}).encode())) == {"op": VALUE.decode()}
    assert said(swap(), b"auth " + HELD) == b"auth " + VALUE


NOT_THERE = {
    "another host": lambda: swap(target=Target("evil.test", 443)),
    "a longer name": lambda: swap(target=Target("api.test.evil.test", 443)),
    "another port": lambda: swap(target=Target("api.test", 8443)),
    "in clear": lambda: swap(scheme="http"),
    "TRACE": lambda: swap(method="TRACE"),
    "CONNECT": lambda: swap(method="CONNECT"),
    "another method": lambda: swap(
        book(Binding(host="api.test", methods=("GET",), header="X-Key", basic=True, query="key", body=True))
    ),
    "the policy allows none": lambda: swap(allowed=()),
    "the policy allows another": lambda: swap(allowed=("OTHER",)),
    "nothing is bound so": lambda: swap(book(Binding(host="api.test"))),
}


@pytest.mark.parametrize("where", NOT_THERE)
def test_elsewhere_it_is_a_finding_in_every_place(where: str) -> None:
    for place in (
        lambda s: s.fields([(b"X-Key", HELD)]),
        lambda s: s.fields([(b"Authorization", basic(b"me", HELD))]),
        lambda s: s.target(f"/?key={HOLDER}"),
        lambda s: s.body(JSON).feed(HELD),
        lambda s: said(s, HELD),
    ):
        one = NOT_THERE[where]()
        with pytest.raises(Misdirected) as caught:
            place(one)
        assert "secret KEY " in str(caught.value)
        assert VALUE not in str(caught.value).encode()


def test_places_that_nothing_can_be_bound_to_are_findings() -> None:
    for fields in (
        [(b"Host", HELD)],
        [(HELD, b"x")],
        [(b"X-Other", HELD)],
        [(b"Authorization", b"Bearer " + HELD)],
        [(b"Authorization", basic(HELD, b"x"))],
        [(b"Authorization", b"Basic " + HELD)],
        [(b"Content-Type", HELD)],
    ):
        with pytest.raises(Misdirected):
            swap().fields(fields)
    for target in (f"/{HOLDER}", f"/?{HOLDER}=1", f"/?other={HOLDER}", f"/{HOLDER}?key={HOLDER}"):
        with pytest.raises(Misdirected):
            swap().target(target)
    with pytest.raises(Misdirected):
        swap().trailers([(b"X-Key", HELD)])


def test_in_a_body_that_nothing_is_bound_to_it_is_found_and_all_else_passes_as_it_is() -> None:
    secrets = book(Binding(host="api.test", header="X-Key"))
    for fields, data in ((JSON, b"{}" * 99), ([(b"Content-Encoding", b"gzip")], gzip.compress(b"x" * 9999))):
        stream = swap(secrets).body(fields)
        assert stream is not None
        assert not stream.rewrites
        assert b"".join([stream.feed(data[:7]), stream.feed(data[7:]), stream.end()]) == data
    for fields, data in ((JSON, HELD), ([(b"Content-Encoding", b"gzip")], gzip.compress(HELD))):
        stream = swap(secrets).body(fields)
        assert stream is not None
        with pytest.raises(Misdirected):
            stream.feed(data[:20]) + stream.feed(data[20:])


def test_a_body_that_cannot_be_looked_into_is_refused_where_a_value_could_belong() -> None:
    with pytest.raises(Misdirected, match="cannot be looked into"):
        swap().body([(b"Content-Encoding", b"br")])
    assert swap(allowed=()).body([(b"Content-Encoding", b"br")]) is None


def test_a_bomb_is_refused_before_it_goes_off() -> None:
    bomb = gzip.compress(bytes(1 << 28))
    stream = swap().body([*JSON, (b"Content-Encoding", b"gzip")])
    assert stream is not None
    assert len(stream.feed(bomb)) < 1 << 16
    with pytest.raises(Misdirected, match="gzip"):
        deque(iter(lambda: stream.feed(b""), None), maxlen=0)


def test_a_value_that_would_end_its_header_is_not_put_there() -> None:
    for value in (b"value\r\nX-Evil: 1", b"value\nsecond", b"value\0nought"):
        with pytest.raises(Unavailable, match="cannot be written"):
            swap(book(value=value)).fields([(b"X-Key", HELD)])


def test_rotation_revocation_and_expiry_hold_from_the_next_request_on() -> None:
    secrets = book(value=b"first-value")
    secrets.put(bound(value=b"second-value"))
    assert swap(secrets).fields([(b"X-Key", HELD)]) == [(b"X-Key", b"second-value")]
    secrets.put(bound(value=None))
    with pytest.raises(Unavailable, match="revoked"):
        swap(secrets).fields([(b"X-Key", HELD)])
    with pytest.raises(Unavailable, match="time of secret KEY is over"):
        swap(book(expires_at=100.0)).fields([(b"X-Key", HELD)])
    with pytest.raises(Unavailable):
        secrets.value("UNKNOWN")


def test_a_sandbox_without_secrets_has_nothing_done_to_its_requests() -> None:
    one, fields = swap(SecretBook()), [(b"Accept-Encoding", b"br")]
    assert (one.target("/?a"), one.fields(fields), one.body(fields)) == ("/?a", fields, None)


def test_only_codings_that_can_be_looked_into_are_asked_for() -> None:
    asked = swap().fields([(b"Accept-Encoding", b"br;q=1.0, gzip;q=0.8, zstd")])
    assert asked == [(b"Accept-Encoding", b"gzip;q=0.8")]
    assert swap().fields([(b"Accept-Encoding", b"br")]) == [(b"Accept-Encoding", b"identity")]


@given(st.binary(min_size=8, max_size=40), st.binary(max_size=20), st.binary(max_size=20), st.integers(0, 200))
def test_no_form_of_a_value_comes_back(value: bytes, before: bytes, after: bytes, cut: int) -> None:
    secrets = book(value=value)
    text = before + base64.b64encode(before + value + after) + b" " + value.hex().encode() + value + after
    returned = ResponseRedaction(secrets.redaction(), [(b"X", value)])
    cut %= len(text) + 1
    came = b"".join([returned.feed(text[:cut]), returned.feed(text[cut:]), returned.end()])
    assert value not in came.replace(HELD, b"") or value in before + b"*" + after
    assert len(came) == len(text)
    assert base64.b64encode(before + value + after) not in came
    assert value.hex().encode() not in came
    assert value not in returned.fields[0][1]


ESCAPES = {
    "percent": lambda byte: b"%%%02x" % byte,
    "PERCENT": lambda byte: b"%%%02X" % byte,
    "json": lambda byte: b"\\u%04X" % byte,
    "python": lambda byte: b"\\x%02x" % byte,
    "decimal": lambda byte: b"&#%d;" % byte,
    "padded": lambda byte: b"&#%07d;" % byte,
    "hexadecimal": lambda byte: b"&#x%x;" % byte,
    "HEXADECIMAL": lambda byte: b"&#X%06X;" % byte,
    "literal": lambda byte: bytes((byte,)),
    "broken": lambda byte: b"\r\n%c" % byte,
    "broken in json": lambda byte: b"%c\\n" % byte,
}


@given(
    st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), min_size=8, max_size=40),
    st.lists(st.sampled_from(sorted(ESCAPES)), min_size=1, max_size=40),
    st.binary(max_size=20),
    st.lists(st.integers(0, 500), max_size=4),
    st.booleans(),
)
def test_a_value_does_not_come_back_however_each_byte_is_escaped(
    text: str, ways: list[str], before: bytes, cuts: list[int], encoded: bool
) -> None:
    value = text.encode()
    redaction = book(value=value).redaction()
    written = base64.b64encode(value) if encoded else value
    escaped = b"".join(ESCAPES[ways[at % len(ways)]](byte) for at, byte in enumerate(written))
    data = before + b"," + escaped + b"z"
    places = sorted({cut % (len(data) + 1) for cut in cuts})
    parts = [data[a:b] for a, b in zip([0, *places], [*places, len(data)], strict=True)]
    stream = redaction.stream()
    came = b"".join([*map(stream.feed, parts), stream.end()])
    assert len(came) == len(data)
    assert escaped not in came
    assert HELD[:6] in came
    assert escaped not in redaction.whole(data)


def test_base64_with_broken_lines_does_not_come_back() -> None:
    value = bytes(range(33, 127)) * 2
    for encoded in (base64.encodebytes(b"ab" + value), base64.encodebytes(value).replace(b"\n", b"\r\n")):
        came = book(value=value).redaction().whole(b"key: " + encoded + b"end\n")
        assert came.startswith(b"key: ")
        assert came.endswith(b"end\n")
        assert not any(len(line) > 10 and line in came for line in encoded.split(b"\n"))


def test_what_is_no_value_passes_at_once_and_what_could_be_one_is_held_within_a_bound() -> None:
    redaction = book(value=b"A-value-of-some-bytes").redaction()
    stream = redaction.stream()
    for piece in (b"100% of it\n", b"C:\\dir\\new", b"a &amp; b &lt", b"data: {}\n\n", b"\\\\u0041"):
        assert stream.feed(piece) + stream.end() == piece
    for piece in (b"%", b"\\", b"&#", b"\\u00", b"&#x4"):
        assert stream.feed(piece) == b""
        assert stream.end() == piece
    assert stream.feed(b"A") == b""
    passed = b"".join(stream.feed(b"\n" * 1000) for _ in range(100))
    assert len(passed) > 90_000


def test_what_was_escaped_is_replaced_and_all_around_it_stays() -> None:
    value = b"A-value/of&some-bytes"
    whole = book(value=value).redaction().whole
    for escaped in (
        b"%41-value%2Fof%26some-bytes",
        b"\\u0041-value\\/of&amp;some-bytes",
        b"A-value&#x2f;of&#38;some-bytes",
    ):
        came = whole(b"\n%41 <" + escaped + b">\r\n&amp;")
        assert came.startswith(b"\n%41 <" + HELD[:20])
        assert came.endswith(b">\r\n&amp;")
        assert len(came) == len(escaped) + 14


def test_a_request_to_where_a_value_may_go_asks_for_no_piece_of_the_answer() -> None:
    pieces = [(b"Range", b"bytes=0-3"), (b"If-Range", b'"x"'), (b"range", b"bytes=1-"), (b"X_MS_Range", b"bytes=1-")]
    for one in (swap(), swap(allowed=()), swap(method="GET")):
        assert one.fields([*pieces, (b"If-Match", b'"x"')]) == [(b"If-Match", b'"x"')]
    assert swap(target=Target("other.test", 443)).fields(pieces) == pieces
    assert swap(SecretBook()).fields(pieces) == pieces


def test_a_field_in_whose_name_a_value_begins_does_not_come_back() -> None:
    redaction = book(value=b"Top-Secret:Value").redaction()
    kept = [(b"X-Top-Secret", b"Other"), (b"Value", b"1"), (b"X", b"top-secret:value")]
    gone = [(b"Top-Secret", b"Value"), (b"X-Top-Secret", b"Value, more"), (b"top-secret", b"value")]
    assert redaction.fields([*kept, *gone]) == kept
    named = book(value=b"Top-Secret-Value").redaction()
    assert named.fields([(b"x-top-secret-value-2", b"1"), (b"Top-Secret-Value", b"1"), (b"A", b"b")]) == [(b"A", b"b")]


def test_a_value_comes_back_as_its_placeholder_also_out_of_gzip_and_after_rotation() -> None:
    secrets = book(value=b"first-value-that-is-longer-than-any-placeholder-can-be")
    secrets.put(bound())
    body = json.dumps(
        {"you": "first-value-that-is-longer-than-any-placeholder-can-be", "sent": VALUE.decode()}
    ).encode()
    zipped = gzip.compress(body)
    fields = [(b"Content-Encoding", b"gzip"), (b"Content-Length", b"%d" % len(zipped)), (b"ETag", b"x")]
    returned = ResponseRedaction(secrets.redaction(), fields)
    assert (returned.fields, returned.rewrites) == ([], True)
    came = json.loads(returned.feed(zipped[:9]) + returned.feed(zipped[9:]) + returned.end())
    assert came["you"].startswith(HOLDER)
    assert set(came["you"].removeprefix(HOLDER)) == {"*"}
    assert came["sent"] == HOLDER[: len(json.dumps(VALUE.decode())) - 2]
    assert Redaction({VALUE: HELD}).whole(VALUE) == HELD


def test_what_cannot_be_looked_into_does_not_come_back() -> None:
    for coding in (b"br", b"zstd", b"gzip, gzip"):
        with pytest.raises(Undecodable):
            ResponseRedaction(book().redaction(), [(b"Content-Encoding", coding)])
    with pytest.raises(Undecodable):
        ResponseRedaction(book().redaction(), [(b"Content-Encoding", b"gzip"), (b"content-encoding", b"gzip")])


def test_every_form_that_programs_write_is_known() -> None:
    known = forms(VALUE)
    assert {VALUE, base64.b64encode(VALUE), json.dumps(VALUE.decode())[1:-1].encode(), VALUE.hex().encode()} <= known


def test_a_placeholder_has_the_shape_that_was_asked_for_and_none_that_can_be_guessed() -> None:
    shaped = mint("ghp_" + "*" * 36)
    assert len(shaped) == 40
    assert shaped.startswith("ghp_")
    assert len({mint() for _ in range(100)}) == 100
    for shape in ("ghp_****", "a b" + "*" * 30, "*" * 300, "%" + "*" * 30, ""):
        with pytest.raises(InvalidArgumentError):
            mint(shape)


def test_neither_book_nor_swap_show_a_value() -> None:
    bound = BoundSecret(name="KEY", placeholder=HOLDER, bindings=(), value=SecretValue(b"plain-value"))
    assert "plain-value" not in repr(bound)
