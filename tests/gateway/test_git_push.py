"""The commands of a push, read as git reads them or not at all."""

from __future__ import annotations

import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddock.gateway.rules.git import (
    MOST_PUSH_BYTES,
    MOST_UPDATES,
    BadPush,
    PushReader,
    Update,
    check_fields,
    is_push,
    refusal,
)
from paddock.policy.network import load

OLD, NEW, NONE = "1" * 40, "2" * 40, "0" * 40
CAPABILITIES = b" report-status side-band-64k object-format=sha1 agent=git/2.39.5"
KIND = (b"Content-Type", b"application/x-git-receive-pack-request")


def line(data: bytes) -> bytes:
    return b"%04x" % (len(data) + 4) + data


def command(ref: str | bytes, new: str = NEW, old: str = OLD, capabilities: bytes | None = None) -> bytes:
    name = ref.encode() if isinstance(ref, str) else ref
    end = b"" if capabilities is None else b"\0" + capabilities
    return line(f"{old} {new} ".encode() + name + end)


def read(data: bytes, *cuts: int) -> PushReader:
    reader, at = PushReader(), 0
    for cut in (*sorted(cuts), len(data)):
        if reader.feed(data[at:cut]):
            break
        at = max(at, cut)
    return reader


refs = st.lists(
    st.from_regex(r"refs/(heads|tags)/[a-z0-9-]{1,20}(/[a-z0-9ä-]{1,20})?", fullmatch=True), max_size=9, unique=True
)
oids = st.from_regex(r"[0-9a-f]{40}", fullmatch=True)


@given(st.data(), refs, oids, oids, st.lists(oids, max_size=3), st.lists(st.integers(0, 2000), max_size=20))
def test_commands_are_read_in_pieces_of_any_size(
    data: st.DataObject, refs: list[str], old: str, new: str, shallow: list[str], cuts: list[int]
) -> None:
    newline = data.draw(st.sampled_from([b"", b"\n"]))
    body = b"".join(line(b"shallow " + oid.encode() + newline) for oid in shallow)
    for index, ref in enumerate(refs):
        end = b"" if index else b"\0" + CAPABILITIES
        body += line(f"{old} {new} {ref}".encode() + end + newline)
    reader = read(body + b"0000PACK\0\0\0\2" + b"x" * 100, *cuts)
    assert reader.done
    assert reader.updates == [Update(ref, old, new) for ref in refs]


@given(st.binary(max_size=300), st.integers(0, 400), st.lists(st.integers(0, 700), max_size=8))
def test_whatever_comes_is_read_the_same_in_any_pieces(noise: bytes, at: int, cuts: list[int]) -> None:
    body = command("refs/heads/a", capabilities=CAPABILITIES) + command("refs/heads/b") + b"0000"
    body = body[:at] + noise + body[at + len(noise) :]

    def outcome(*cuts: int) -> object:
        try:
            reader = read(body, *cuts)
        except BadPush as error:
            return str(error)
        return reader.done, reader.updates

    assert outcome(*cuts) == outcome()


@pytest.mark.parametrize(
    "body",
    [
        b"PACK",
        b"zzzz",
        b"+001",
        b"0001",  # delimiters of protocol 2
        b"0002",
        b"0004",
        b"ffff" + b"x" * 10,
        line(b"command=push\n"),
        line(b"push-cert\0" + CAPABILITIES),
        command("refs/heads/a", capabilities=b"push-cert=nonce"),
        command("refs/heads/a", capabilities=b"report-status push-options"),
        command("refs/heads/a", capabilities=b"push-options=1"),
        command("refs/heads/a", capabilities=b"report-status\0push-options"),
        command("refs/heads/a", capabilities=b"report-status\tpush-options"),
        command("refs/heads/a") + command("refs/heads/b", capabilities=b"push-options"),
        command("refs/heads/a") + line(b"shallow " + OLD.encode()),
        line(b"shallow " + OLD.encode() + b"\0push-options"),
        command("refs/heads/a") + command("refs/heads/a") + b"0000",
        command("refs/heads/a", old="1" * 64),
        command("refs/heads/a") + command("refs/heads/b", old="1" * 64, new="2" * 64),
        command("refs/heads/a", new="G" * 40),
        command("refs/heads/a", new="A" * 40),
        line(f"{OLD}  {NEW} refs/heads/a".encode()),
        line(f"{OLD} {NEW}".encode()),
        b"".join(command(f"refs/heads/{n}") for n in range(MOST_UPDATES + 1)),
        command("refs/heads/" + "a" * 2000),
        line(b"shallow " + OLD.encode()) * (MOST_PUSH_BYTES // 52 + 1),
    ],
)
def test_what_git_does_not_send_or_cannot_be_judged_is_refused(body: bytes) -> None:
    with pytest.raises(BadPush):
        PushReader().feed(body)


NAMES = [
    "HEAD",
    "main",
    "refs",
    "refs/",
    "refs/heads/",
    "/refs/heads/a",
    "refs//heads/a",
    "refs/heads/a/",
    "refs/heads/.a",
]
NAMES += [
    "refs/heads/a.lock",
    "refs/heads/a.lock/b",
    "refs/heads/a..b",
    "refs/heads/../main",
    "refs/heads/a.",
    "--mirror",
]
NAMES += ["refs/heads/@{1}", *(f"refs/heads/a{c}b" for c in " ~^:?*[\\\x01\t\x7f")]
GOOD = [
    "refs/heads/a",
    "refs/heads/--mirror",
    "refs/heads/a.b",
    "refs/heads/@",
    "refs/heads/ä",
    "refs/tags/v1",
    "refs/x/y",
]


@pytest.mark.parametrize("name", [*NAMES, *GOOD])
def test_a_name_is_one_where_git_says_so(name: str) -> None:
    good = name.startswith("refs/") and not subprocess.run(["git", "check-ref-format", name], check=False).returncode
    assert good == (name in GOOD)
    if good:
        assert read(command(name) + b"0000").updates == [Update(name, OLD, NEW)]
    else:
        with pytest.raises(BadPush):
            PushReader().feed(command(name))


@pytest.mark.parametrize("name", [b"refs/heads/\xff", "refs/heads/a\u202eb".encode()])
def test_a_name_that_cannot_be_shown_is_refused(name: bytes) -> None:
    with pytest.raises(BadPush):
        PushReader().feed(command(name))


def test_a_push_is_judged_by_the_full_names_of_its_refs() -> None:
    rules = "{git: 'https://git.test/o/n', push: [refs/heads/agent/*, refs/heads/deep/**, refs/tags/v*]}"
    policy = load(f"egress:\n  allow: [{{host: a.test}}, {rules}]\n").snapshot

    def authorized(ref: str, new: str = NEW) -> bool:
        return refusal([Update(ref, OLD, new)], lambda ref: policy.push(1, ref), "rule") is None

    for ref in ("refs/heads/agent/x", "refs/heads/agent/--mirror", "refs/heads/deep/a/b", "refs/tags/v1"):
        assert authorized(ref)
        assert not authorized(ref, NONE)
        assert not authorized(ref, "0" * 64)
    for ref in ("refs/heads/main", "refs/heads/agent", "refs/heads/agent/a/b", "refs/heads/--mirror", "refs/tags/w"):
        assert not authorized(ref)
    for ref in ("refs/tags/agent/x", "xrefs/heads/agent/x", "refs/heads/Agent/x", "refs/for/main"):
        assert not authorized(ref)
    assert not policy.push(0, "refs/heads/agent/x")  # a rule that is none of git's
    two = [Update("refs/heads/agent/x", OLD, NEW), Update("refs/heads/main", OLD, NEW)]
    assert refusal(two, lambda ref: policy.push(1, ref), "rule") == "rule allows no push to refs/heads/main"


@pytest.mark.parametrize(
    "fields",
    [
        [],
        [(b"Content-Type", b"text/plain")],
        [KIND, KIND],
        [KIND, (b"Content-Encoding", b"gzip")],
        [KIND, (b"content_encoding", b"gzip")],
        [KIND, (b"Content-Encoding", b"identity")],
    ],
)
def test_a_body_that_is_encoded_or_something_else_is_refused(fields: list[tuple[bytes, bytes]]) -> None:
    check_fields([KIND, (b"Accept", b"*/*")])
    with pytest.raises(BadPush):
        check_fields(fields)


def test_a_push_is_known_in_either_reading_of_its_path() -> None:
    assert is_push("/o/n.git/git-receive-pack?x=y")
    assert is_push("/o/n%2Fgit-receive-pack")
    assert not is_push("/o/n/info/refs?service=git-receive-pack")
    assert not is_push("/o/n/git-upload-pack?/git-receive-pack")
