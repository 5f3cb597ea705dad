"""What a client and the daemon say to each other is what msgspec would say, and as strict.

Beside each class stands a struct of msgspec's with the same fields: the two have to write the same bytes, and to take
and refuse the same ones.
"""

from __future__ import annotations

import ast
import functools
import json
import typing
from importlib.resources import files
from types import NoneType, UnionType
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paddock.daemon.sandboxes import nested
from paddock.errors import InvalidArgumentError, PolicyDeniedError
from paddock.model import (
    Action,
    ApprovalRequest,
    ExecSpec,
    FileInfo,
    FileKind,
    PolicyDocument,
    Recorded,
    RunExec,
    SandboxSpec,
    Value,
    codec,
)
from paddock.model.any_action import BY_TAG
from paddock.model.value import REQUIRED, field_type
from paddock.policy.network import load

HANDLES = ("ExecHandle", "ByteReader", "ByteWriter", "ByteStream", "ChangeStream")
RESULTS = {action.TAG: codec.result_type(action) for action in BY_TAG.values() if action.RESULT not in HANDLES}
MESSAGES = (codec.Call, codec.Handle, codec.Hello, codec.Request, codec.Status, codec.Welcome, nested.Request)
KINDS = [*BY_TAG.values(), *RESULTS.values(), *MESSAGES, FileInfo | None]
RECORDS = sorted({kind for kind in RESULTS.values() if isinstance(kind, type) and issubclass(kind, Value)}, key=str)
RECORDS += [ApprovalRequest, ExecSpec, SandboxSpec]
FEW = settings(max_examples=settings.default.max_examples * 2 // 5)
"""Of each of 153 kinds, which all take the same way."""
POLICY = load("version: 1\negress:\n  allow:\n    - host: example.org\n").document


def twin(kind: Any) -> Any:
    """What stands for `kind` at msgspec."""
    arguments = typing.get_args(kind)
    if kind is Action or typing.get_origin(kind) is Action:
        return functools.reduce(lambda one, other: one | other, map(struct, BY_TAG.values()))
    if isinstance(kind, UnionType) or typing.get_origin(kind) is typing.Union:
        return functools.reduce(lambda one, other: one | other, map(twin, arguments))
    if typing.get_origin(kind) in (tuple, dict):
        return typing.get_origin(kind)[tuple(part if part is ... else twin(part) for part in arguments)]
    return struct(kind) if isinstance(kind, type) and issubclass(kind, Value) else kind


@functools.cache
def struct(kind: type[Value]) -> type[msgspec.Struct]:
    fields: list[Any] = []
    for name, default in kind.__fields__.items():
        of = twin(field_type(kind, name))
        if default is REQUIRED:
            fields.append((name, of))
        elif isinstance(default, dict):
            fields.append((name, of, msgspec.field(default_factory=dict)))
        else:
            fields.append((name, of, as_struct(default)))
    tag = {"tag_field": "action", "tag": kind.TAG} if issubclass(kind, Action) else {}
    return msgspec.defstruct(
        kind.__name__,
        fields,
        frozen=True,
        kw_only=True,
        forbid_unknown_fields=kind.__forbids_unknown__,
        **tag,
    )


def as_struct(value: Any) -> Any:
    if isinstance(value, Value):
        return struct(type(value))(**{name: as_struct(getattr(value, name)) for name in value.__fields__})
    return tuple(map(as_struct, value)) if isinstance(value, tuple) else value


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.sampled_from([0.0, 1.5, -2.0, 1e15]) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
SCALARS: dict[Any, st.SearchStrategy[Any]] = {
    str: st.text(max_size=12),
    int: st.integers(1 - 2**64, 2**64 - 1),
    float: st.integers(-(10**12), 10**12).map(lambda eighths: eighths / 8),  # Python writes 1e+16, msgspec 1e16
    bool: st.booleans(),
    bytes: st.binary(max_size=12),
    NoneType: st.none(),
    None: st.none(),
    Any: JSON,
    PolicyDocument: st.just(POLICY),
    Recorded: st.builds(Recorded, url=st.text(max_size=5), status=st.integers(100, 599)),
}


def values(kind: Any) -> st.SearchStrategy[Any]:
    arguments = typing.get_args(kind)
    if kind in SCALARS:
        return SCALARS[kind]
    if kind is Action or typing.get_origin(kind) is Action:
        return st.sampled_from(list(BY_TAG.values())).flatmap(made)
    if isinstance(kind, UnionType) or typing.get_origin(kind) is typing.Union:
        return st.one_of(*map(values, arguments))
    if typing.get_origin(kind) is typing.Literal:
        return st.sampled_from(arguments)
    if typing.get_origin(kind) is tuple and arguments[-1] is not ...:
        return st.tuples(*map(values, arguments))
    if typing.get_origin(kind) is tuple:
        return st.lists(values(arguments[0]), max_size=2).map(tuple)
    if typing.get_origin(kind) is dict:
        return st.dictionaries(values(arguments[0]), values(arguments[1]), max_size=2)
    return made(kind) if issubclass(kind, Value) else st.sampled_from(list(kind))


@functools.cache
def made(kind: type[Value]) -> st.SearchStrategy[Any]:
    given_ones = {name: values(field_type(kind, name)) for name in kind.__fields__}
    if kind is codec.Call:
        given_ones["sent"] = st.none() | st.integers(0, 2**63)
    return st.builds(
        lambda some: kind(**some),
        st.fixed_dictionaries(
            {name: one for name, one in given_ones.items() if kind.__fields__[name] is REQUIRED},
            optional={name: one for name, one in given_ones.items() if kind.__fields__[name] is not REQUIRED},
        ),
    )


def name_of(kind: Any) -> str:
    return getattr(kind, "__name__", str(kind))


@pytest.mark.parametrize("kind", KINDS, ids=name_of)
@FEW
@given(data=st.data())
def test_each_value_is_written_so_that_msgspec_and_the_codec_read_it_back(kind: Any, data: st.DataObject) -> None:
    value = data.draw(values(kind))
    written = codec.encode(value)
    assert msgspec.json.decode(written, type=twin(kind)) == as_struct(value)
    if isinstance(value, Action):
        assert codec.decode(codec.encode(codec.Request(action=value)), codec.Request).action == value
    else:
        assert codec.decode(written, kind) == value


def places(document: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of everything in a document."""
    found = [path]
    items = (
        document.items() if isinstance(document, dict) else enumerate(document) if isinstance(document, list) else ()
    )
    for key, item in items:
        found += places(item, (*path, key))
    return found


@pytest.mark.parametrize("kind", [*RESULTS.values(), *MESSAGES], ids=name_of)
@FEW
@given(data=st.data())
def test_what_is_wrong_is_taken_or_refused_as_msgspec_does(kind: Any, data: st.DataObject) -> None:
    document = json.loads(codec.encode(data.draw(values(kind))))
    whole = {"": document}
    holder: Any = whole
    *path, last = ("", *data.draw(st.sampled_from(places(document))))
    for key in path:
        holder = holder[key]
    change = data.draw(st.sampled_from(("replace", "drop", "add"))) if path and isinstance(holder, dict) else "replace"
    if change == "drop":
        del holder[last]
    else:
        holder[data.draw(st.text(max_size=5)) if change == "add" else last] = data.draw(JSON)
    agree(json.dumps(whole[""]).encode(), kind)


HOSTILE = (
    b"",
    b"{",
    b"{}x",
    b"null",
    b"[]",
    b'"x"',
    b"\xff",
    b'{"argv":["a"],"argv":["b"]}',
    b'{"argv":"a"}',
    b'{"argv":[1]}',
    b'{"argv":["a"],"timeout_seconds":NaN}',
    b'{"argv":["a"],"timeout_seconds":Infinity}',
    b'{"argv":["a"],"timeout_seconds":1e400}',
    b'{"argv":["a"],"timeout_seconds":1' + b"0" * 400 + b"}",
    b'{"argv":["a"],"timeout_seconds":true}',
    b'{"argv":["a"],"timeout_seconds":3}',
    b'{"argv":["a"],"stdin":1}',
    b'{"argv":["a"],"stdin":null}',
    b'{"argv":["a"],"pty":{"rows":1.0}}',
    b'{"argv":["a"],"pty":{"rows":1e2}}',
    b'{"argv":["a"],"pty":{"rows":' + b"9" * 5000 + b"}}",
    b'{"argv":["a"],"pty":{"more":1}}',
    b'{"argv":["a"],"more":1}',
    b'{"argv":["a"],"env":{"a":1}}',
    b'{"argv":["a\x00"]}',
    b'{"argv":["\xc3"]}',
    b'{"argv":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
)


@pytest.mark.parametrize("data", HOSTILE, ids=lambda data: repr(data[:40]))
def test_hostile_text_is_taken_or_refused_as_msgspec_does(data: bytes) -> None:
    agree(data, ExecSpec)
    agree(b'{"action":{"action":"exec.run","sandbox":"x","spec":' + data + b"}}", codec.Request)


@pytest.mark.parametrize(
    "data",
    [
        b'{"action":{}}',
        b'{"action":{"action":1}}',
        b'{"action":{"action":"no.such"}}',
        b'{"action":{"action":"sandbox.get"}}',
        b'{"action":{"action":"sandbox.get","sandbox":"x","more":1}}',
        b'{"action":{"sandbox":"x","action":"sandbox.get"}}',
        b'{"action":{"action":"exec.run","sandbox":"x","spec":{"argv":["a"]},"input":"YQ"}}',
        b'{"action":{"action":"exec.run","sandbox":"x","spec":{"argv":["a"]},"input":"YR=="}}',
        b'{"action":{"action":"exec.run","sandbox":"x","spec":{"argv":["a"]},"input":"Y Q=="}}',
        b'{"action":{"action":"sandbox.create","spec":{"limits":{"cpus":1,"more":2}}}}',
        b'{"action":{"action":"sandbox.create","spec":{"level":"none"}}}',
        b'{"action":{"action":"sandbox.create","spec":{"policy":{"version":2}}}}',
        b'{"more":1}',
    ],
)
def test_a_request_is_taken_or_refused_as_msgspec_does(data: bytes) -> None:
    agree(data, codec.Request)


def agree(data: bytes, kind: Any) -> None:
    try:
        theirs = msgspec.json.encode(msgspec.json.decode(data, type=twin(kind)))
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        with pytest.raises(codec.Malformed):
            codec.decode(data, kind)
    else:
        assert msgspec.json.encode(as_struct(codec.decode(data, kind))) == theirs


INSIDE = {
    "sandbox.create": {"spec", "name", "ttl_seconds", "limits", "env"},
    "sandbox.fork": {"sandbox", "count"},
    "sandbox.list": set[str](),
    "sandbox.kill": {"sandbox"},
    "sandbox.pause": {"sandbox"},
    "sandbox.resume": {"sandbox"},
    "sandbox.promote": {"sandbox", "child", "path"},
    "exec.run": {"sandbox", "spec", "input", "argv", "cwd", "env", "user", "timeout_seconds"},
    "file.read": {"sandbox", "path"},
    "file.write": {"sandbox", "path"},
}


@pytest.mark.parametrize("tag", INSIDE)
@given(data=st.data())
def test_of_what_a_program_inside_asks_only_what_children_need_passes(tag: str, data: st.DataObject) -> None:
    action = data.draw(made(BY_TAG[tag]))
    body = codec.encode(nested.Request(action=action))
    parts = (action, getattr(action, "spec", action))
    changed = {name for part in parts for name, of in part.__fields__.items() if getattr(part, name) != of}
    if changed <= INSIDE[tag]:
        assert nested.admitted(body).action == action
    else:
        with pytest.raises(InvalidArgumentError, match=f"takes no ({'|'.join(changed - INSIDE[tag])}) inside"):
            nested.admitted(body)


@given(values(Action).filter(lambda action: action.TAG not in INSIDE))
def test_no_other_action_passes_from_inside(action: Action[Any]) -> None:
    with pytest.raises(PolicyDeniedError, match=action.TAG):
        nested.admitted(codec.encode(nested.Request(action=action)))


@given(data=st.data())
def test_whatever_is_written_inside_is_a_request_or_is_refused(data: st.DataObject) -> None:
    garbage = st.binary(max_size=200) | JSON.map(json.dumps).map(str.encode)
    try:
        nested.admitted(data.draw(garbage | st.builds(b'{"action":%b}'.__mod__, garbage)))
    except InvalidArgumentError:
        return
    raise AssertionError("garbage is a request")


def test_a_request_from_inside_has_so_many_parts_and_no_more() -> None:
    def request(parts: int) -> bytes:
        return codec.encode(nested.Request(action=RunExec(sandbox="x", spec=ExecSpec(argv=("a",) * parts))))

    assert nested.admitted(request(nested.MOST_PARTS // 2))
    for body in (request(nested.MOST_PARTS + 1), b"[" * (6 << 20), b'"%b"' % (b"\\u0041" * (1 << 18))):
        with pytest.raises(InvalidArgumentError, match="parts"):
            nested.admitted(body)


def test_the_package_inside_is_written_for_the_oldest_python_that_it_promises() -> None:
    for source in nested.PACKAGE.values():
        ast.parse(files("paddock").joinpath(source).read_text(), feature_version=(3, 8))


def test_no_fewer_than_no_bytes_were_sent() -> None:
    with pytest.raises(codec.Malformed, match="sent"):
        codec.decode(b'{"call":{"handle":1,"method":"close","sent":-1}}', codec.Request)


def test_names_that_are_not_utf8_travel_as_escapes() -> None:
    info = FileInfo(path="/caf\udce9", kind=FileKind.FILE)
    written = codec.encode(info)
    assert written.isascii()
    assert codec.decode(written, FileInfo) == info


def test_a_path_longer_than_the_kernels_is_refused_by_both_decoders() -> None:
    written = codec.encode(FileInfo(path="/" * 4097, kind=FileKind.FILE))
    with pytest.raises(codec.Malformed, match="4096"):
        codec.decode(written, FileInfo)
    with pytest.raises(msgspec.ValidationError, match="4096"):
        msgspec.json.decode(written, type=FileInfo)


@pytest.mark.parametrize("kind", RECORDS, ids=name_of)
@given(data=st.data())
def test_records_that_msgspec_keeps_have_the_bytes_that_its_structs_had(kind: Any, data: st.DataObject) -> None:
    """Digests of requests and of what a person approved are kept in state directories."""
    value = data.draw(values(kind))
    encode = msgspec.json.Encoder(order="deterministic").encode
    assert encode(value) == encode(as_struct(value))
    assert msgspec.json.decode(encode(value), type=kind) == value


def test_a_digest_of_a_specification_is_what_it_was() -> None:
    spec = SandboxSpec(name="tâche", env={"B": "1", "A": "é"}, policy=POLICY)
    assert msgspec.json.encode(spec, order="deterministic").startswith(
        b'{"template":"host","level":null,"name":"t\xc3\xa2che","ttl_seconds":300.0,"persistent":false,"limits":{"cpus":2.0,'
    )
