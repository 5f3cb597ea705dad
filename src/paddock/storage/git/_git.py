"""The host's git, for the network only: list a remote's refs, fetch them into a bare repository, push from one."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from paddock.errors import InvalidArgumentError, InvalidStateError, PlatformError

from ._ambient import DIRECTORY, PROGRAM, Login
from ._process import GIT_ID, TEMPLATE, BindMount, Bounds, Ended, Progress, RemoteRefused, plain, run, trouble
from ._remote import SSH, Credential, Remote, names
from .pins import fetched

HEADS, TAGS = "refs/heads/", "refs/tags/"
_HERE, _THERE, _LENDER = "/repository", "/remote", "/lender"
_ALL = ("+refs/heads/*:refs/heads/*", "+refs/tags/*:refs/tags/*")

# The complete configuration of git and its child processes. Old histories have untidy commits and trees. fsck accepts
# those, but none that could deceive a checkout.
_CONFIG = """
[core]
	hooksPath = /dev/null
	fsmonitor = false
	attributesFile = /dev/null
	excludesFile = /dev/null
	askPass =
	sshCommand = /bin/false
	gitProxy = none
	alternateRefsCommand = /bin/true
	bigFileThreshold = 64m
	packedGitLimit = 1g
	packedGitWindowSize = 64m
	protectHFS = true
	protectNTFS = true
[gc]
	auto = 0
[maintenance]
	auto = false
[init]
	templateDir =
	defaultBranch = main
[protocol]
	version = 2
	allow = never
[transfer]
	fsckObjects = true
	unpackLimit = 1
	credentialsInUrl = die
	bundleURI = false
[fetch]
	fsckObjects = true
	unpackLimit = 1
	recurseSubmodules = false
	writeCommitGraph = false
	showForcedUpdates = false
	output = compact
[fetch "fsck"]
	zeroPaddedFilemode = ignore
	badTimezone = ignore
	missingSpaceBeforeDate = ignore
	missingSpaceBeforeEmail = ignore
	badEmail = ignore
	missingEmail = ignore
	missingNameBeforeEmail = ignore
	badDateOverflow = ignore
	nullSha1 = ignore
[advice]
	fetchShowForcedUpdates = false
[pack]
	threads = 2
[submodule]
	recurse = false
[http]
	followRedirects = false
	lowSpeedLimit = 1000
	lowSpeedTime = 60
[safe]
	directory = *
[credential]
	helper =
"""
# The credential is in a pipe. git can read it once, and only for its origin.
_HELPER = """[credential "{origin}"]
	helper = "!f() {{ test \\"$1\\" != get || cat <&9; }}; f"
"""
_HEADER = """[http "{origin}"]
	extraHeader = "Authorization: {header}"
"""
_SSH = f"""[core]
	sshCommand = {PROGRAM} -F {DIRECTORY}/config
[ssh]
	variant = ssh
"""
Proof = Credential | Login
"""The proof of identity for a remote."""


class Ref(msgspec.Struct, frozen=True):
    """A ref of the remote. `commit` is the commit to which it leads. None: it leads to another object."""

    oid: str
    commit: str | None


class Listing(msgspec.Struct, frozen=True, kw_only=True):
    """The refs of a remote at one moment. `head` is the full name of its default branch."""

    head: str | None
    refs: Mapping[str, Ref]


class HostGit:
    """Bare repositories in one directory, by opaque name. Callers make sure that a repository has one writer."""

    def __init__(self, directory: Path, *, bounds: Bounds = Bounds()) -> None:  # noqa: B008 (a frozen value)
        self.directory, self._bounds = directory, bounds

    def path(self, name: str) -> Path:
        return self.directory / name

    async def look(self, remote: Remote, credential: Proof | None, extra: Sequence[str] = ()) -> Listing:
        """List branches, tags, and the full names `extra` of a remote.

        Raises Refused, NotFoundError and PlatformError.
        """
        arguments = ["ls-remote", "--symref", "--", _address(remote), "HEAD", "refs/heads/*", "refs/tags/*", *extra]
        return _listing((await self._run(arguments, remote, credential)).out)

    async def init(self, name: str, *, sha256: bool = False) -> None:
        """Make an empty repository, if there is none."""
        path = self.path(name)
        await asyncio.to_thread(_make_directory, path)
        kind = f"--object-format={'sha256' if sha256 else 'sha1'}"
        ended = await self._inside(
            name, ["init", "--quiet", "--bare", kind, f"--template={TEMPLATE}", _HERE], writable=True
        )
        if ended.code:
            raise PlatformError(f"cannot make a repository in {path}: {ended.err[-300:]}")

    async def fetch(
        self,
        name: str,
        remote: Remote,
        credential: Proof | None,
        *,
        only: str | None = None,
        progress: Progress | None = None,
    ) -> None:
        """Fetch all branches and tags and prune the others, or fetch the object or ref `only`, which a pin keeps.

        The caller holds the lock of the repository. Raises Refused, NotFoundError, InvalidArgumentError,
        ResourceExhaustedError and PlatformError.
        """
        refspecs = _ALL if only is None else (f"+{only}:{fetched(only)}",)
        arguments = [
            *(f"--git-dir={_HERE}", "fetch", "--force", "--no-tags", "--no-recurse-submodules"),
            *("--no-auto-maintenance", "--no-write-fetch-head", "--update-shallow", "--progress"),
            *(("--prune",) if only is None else ()),
            *("--", _address(remote), *refspecs),
        ]
        await self._run(arguments, remote, credential, name=name, progress=progress)

    async def refs(self, name: str) -> Mapping[str, Ref]:
        """Return branches and tags as they are here now."""
        form = "--format=%(objectname) %(objecttype) %(*objectname) %(*objecttype) %(refname)"
        ended = await self._inside(name, [f"--git-dir={_HERE}", "for-each-ref", form, HEADS, TAGS])
        if ended.code:
            raise PlatformError(f"the repository {self.path(name)} cannot be read: {ended.err[-300:]}")
        return dict(filter(None, map(_ref_here, ended.out.split(b"\n"))))

    async def commit(self, name: str, text: str, *, lender: str | None = None) -> str | None:
        """Return the id of the commit that `text`, a full id or a full name of a ref, leads to here."""
        ended = await self._inside(
            name,
            [f"--git-dir={_HERE}", "rev-parse", "--verify", "--quiet", "--end-of-options", f"{text}^{{commit}}"],
            lender=lender,
        )
        return ended.out.decode().strip() if ended.code == 0 else None

    async def clear_up(self, name: str) -> None:
        """Delete the remains of a killed git. The caller holds the lock."""
        left = ("(", "-name", "*.lock", "-o", "-name", "tmp_*", ")", "-type", "f", "-delete")
        await self._inside(name, [_HERE, "-xdev", *left], program="/usr/bin/find", writable=True)

    async def receive(self, name: str, lender: str, pack: bytes, commit: str) -> None:
        """Make the repository `name`, which borrows the objects of `lender`, of a pack that an attacker may have
        written.

        git checks every object, and that all objects it names are there. InvalidArgument.
        """
        await self.init(name, sha256=len(commit) == 64)
        await asyncio.to_thread(_write_pack, self.path(name) / "objects", pack)
        arguments = ["index-pack", "--strict", f"{_HERE}/objects/pack/pack-received.pack"]
        ended = await self._inside(name, [f"--git-dir={_HERE}", *arguments], writable=True, lender=lender)
        if ended.code:
            raise InvalidArgumentError(f"git refuses what the workspace has made: {ended.err[-300:]}")
        if await self.commit(name, commit, lender=lender) != commit:
            raise InvalidArgumentError(f"what the workspace has made holds no commit {commit}")

    async def leads(self, name: str, old: str, new: str, *, lender: str | None = None) -> bool:
        """Tell whether `old` is an ancestor of `new`."""
        arguments = [f"--git-dir={_HERE}", "merge-base", "--is-ancestor", old, new]
        ended = await self._inside(name, arguments, lender=lender)
        if ended.code not in (0, 1):
            raise PlatformError(f"the repository {self.path(name)} cannot be read: {ended.err[-300:]}")
        return ended.code == 0

    async def push(
        self,
        name: str,
        remote: Remote,
        credential: Proof | None,
        *,
        commit: str,
        ref: str,
        expect: str | None,
        lender: str | None = None,
    ) -> None:
        """Set `ref` of the remote to `commit`, if it is at `expect`.

        None: if it doesn't exist. Raises Refused and InvalidStateError.
        """
        arguments = [
            *(f"--git-dir={_HERE}", "push", "--porcelain", "--no-verify", "--no-follow-tags"),
            *("--recurse-submodules=no", f"--force-with-lease={ref}:{expect or ''}"),
            *("--", _address(remote), f"{commit}:{ref}"),
        ]
        await self._run(arguments, remote, credential, name=name, pushing=True, lender=lender)

    async def _run(
        self,
        arguments: Sequence[str],
        remote: Remote,
        credential: Proof | None,
        *,
        name: str | None = None,
        pushing: bool = False,
        progress: Progress | None = None,
        lender: str | None = None,
    ) -> Ended:
        """Run git with a network, for `remote` alone. Raise the error of its failure."""
        mounts: list[BindMount] = self._lent(lender)
        if name is not None:
            mounts.append(BindMount(str(self.path(name)), _HERE, writable=True))
        if remote.path is not None:
            mounts.append(BindMount(str(remote.path), _THERE, writable=pushing, owned=True))
        config = _CONFIG
        login = credential if isinstance(credential, Login) else None
        if credential is not None:
            if remote.sends_in_the_clear:
                raise InvalidArgumentError(f"{remote.url} would be sent a credential in the clear", hint="use https")
            config += _proof(remote, credential)
        if remote.scheme == SSH and login is None:
            raise RemoteRefused("no key is known for it")
        ended = await run(
            arguments,
            mounts=mounts,
            config=config,
            bounds=self._bounds,
            protocols=remote.scheme,
            direct=bool(remote.addresses),
            silence=None if pushing or remote.path is not None else self._bounds.silence_seconds,
            secret=credential.lines() if isinstance(credential, Credential) and not credential.bearer else "",
            files=login.files(GIT_ID if os.geteuid() == 0 else os.getuid()) if login else names(remote),
            agent=login.agent if login else None,
            progress=progress,
        )
        if pushing and b"\n!\t" in b"\n" + ended.out:
            why = _reason(ended.out) + _remarks(ended.err)
            raise InvalidStateError(f"{remote.url} does not take it: {why}", hint="look at what is there now")
        if ended.code or ended.over:
            raise trouble(ended, remote, self._bounds)
        return ended

    async def _inside(
        self,
        name: str,
        arguments: Sequence[str],
        *,
        program: str | None = None,
        writable: bool = False,
        lender: str | None = None,
    ) -> Ended:
        mounts = [BindMount(str(self.path(name)), _HERE, writable=writable), *self._lent(lender)]
        return await run(arguments, program=program, mounts=mounts, config=_CONFIG, bounds=self._bounds)

    def _lent(self, lender: str | None) -> list[BindMount]:
        return [] if lender is None else [BindMount(str(self.path(lender)), _LENDER)]


def _address(remote: Remote) -> str:
    return remote.url if remote.path is None else f"file://{_THERE}"


def _proof(remote: Remote, credential: Proof) -> str:
    if isinstance(credential, Login):
        return _SSH
    if credential.bearer:
        return _HEADER.format(origin=remote.origin, header=credential.header())
    return _HELPER.format(origin=remote.origin)


def _reason(out: bytes) -> str:
    """Return why the remote rejected a ref.

    The line has `!`, from and to, and the reason, with tabs between (git-push(1), --porcelain).
    """
    line = next(line for line in out.split(b"\n") if line.startswith(b"!\t"))
    return plain(line.split(b"\t")[-1].decode(errors="replace"))[:200]


def _remarks(err: str) -> str:
    """Return the output of the server's hooks."""
    messages = [line.removeprefix("remote: ").strip() for line in err.split("\n") if line.startswith("remote: ")]
    return "".join(f"; {line}" for line in messages if line)[:300]


def _listing(out: bytes) -> Listing:
    head: str | None = None
    oids: dict[str, str] = {}
    for line in out.split(b"\n"):
        value, _, name = _text(line).partition("\t")
        if name == "HEAD" and value.startswith(f"ref: {HEADS}"):
            head = value.removeprefix("ref: ")
        elif name.startswith("refs/"):
            oids[name] = value
    refs = {name: Ref(oid, oids.get(f"{name}^{{}}", oid)) for name, oid in oids.items() if not name.endswith("^{}")}
    return Listing(head=head, refs=refs)


def _ref_here(line: bytes) -> tuple[str, Ref] | None:
    parts = _text(line).split(" ", 4)
    if len(parts) != 5:
        return None
    oid, kind, peeled, peeled_kind, name = parts
    commit = oid if kind == "commit" else peeled if peeled_kind == "commit" else None
    return name, Ref(oid, commit)


def _text(line: bytes) -> str:
    """Decode a line. Empty for a name that isn't UTF-8: no one can ask for it, and git fetches it with the others."""
    try:
        return line.decode()
    except UnicodeDecodeError:
        return ""


def _make_directory(path: Path) -> None:
    path.mkdir(mode=0o755, parents=True, exist_ok=True)
    if os.geteuid() == 0:
        os.chown(path, GIT_ID, GIT_ID)


def _write_pack(objects: Path, pack: bytes) -> None:
    (objects / "info" / "alternates").write_text(f"{_LENDER}/objects\n")
    (objects / "pack" / "pack-received.pack").write_bytes(pack)
    (objects / "pack" / "pack-received.pack").chmod(0o644)
    (objects / "info" / "alternates").chmod(0o644)
