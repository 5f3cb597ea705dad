"""Hold what the host knows and the native guest doesn't: where paths begin, and the environment of commands."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping

from paddock.errors import FileError, InvalidArgumentError
from paddock.model import Template, User
from paddock.wire import WireError
from paddock.wire.guest import Limit


class GuestDefaults:
    """Hold that for one sandbox.

    `root`, which only the process level has, precedes every path as plain text: it isolates nothing. `env` goes to
    every command. `oom_score` makes the kernel kill commands before their agent.
    """

    def __init__(
        self,
        *,
        workdir: str = "/",
        env: Mapping[str, str] | None = None,
        root: str = "",
        oom_score: int | None = None,
    ) -> None:
        self._workdir = encode(workdir)
        self._root = encode(root).rstrip(b"/")
        self._env = {name: _variable(name, value) for name, value in (env or {}).items()}
        self.oom_score = oom_score

    def locate(self, path: str, what: str = "path") -> bytes:
        """Where the guest finds what the sandbox knows as `path`; relative paths are below the working directory."""
        name = encode(path)
        if not name:
            raise InvalidArgumentError(f"{what} is empty")
        if not name.startswith(b"/"):
            name = self._workdir.rstrip(b"/") + b"/" + name
        if self._root:
            name = self._root + os.path.normpath(b"/" + name.lstrip(b"/"))
        if len(name) > Limit.PATH:
            raise FileError(f"{what} is longer than {Limit.PATH} bytes", errno=errno.errorcode[errno.ENAMETOOLONG])
        return name

    def cwd(self, path: str | None) -> bytes:
        return self.locate(path or show(self._workdir), "cwd")

    def name(self, path: bytes) -> str:
        """Return what the sandbox calls it. WireError: it is in none of its places."""
        if path != self._root and not path.startswith(self._root + b"/"):
            raise WireError("a path outside of the sandbox's directory")
        return show(path[len(self._root) :] or b"/")

    def environment(self, more: Mapping[str, str], user: User | None = None) -> tuple[bytes, ...]:
        """Of a command that has `more`, and runs as `user` in place of the agent's."""
        for name in more:
            if not name or "=" in name:
                raise InvalidArgumentError(f"env holds the name {name!r}")
        if user is not None:
            more = {**variables(user), **more}
        return tuple({**self._env, **{name: _variable(name, value) for name, value in more.items()}}.values())


def user_of(identity: str, template: Template) -> User:
    """Return the user of an agent: `user` is the template's default one, any other is root."""
    return template.user(None if identity == "user" else "0") or User(name="root", uid=0, gid=0, home="/root")


def place_of(identity: str, template: Template, env: Mapping[str, str], oom_score: int | None) -> GuestDefaults:
    """Return what the agent of an identity isn't told. `env` is the environment of every command."""
    if identity not in ("user", "root"):
        return GuestDefaults()
    env = {**env, **variables(user_of(identity, template))}
    return GuestDefaults(workdir=template.workdir, env=env, oom_score=oom_score)


def _variable(name: str, value: str) -> bytes:
    return encode(name) + b"=" + encode(value)


def variables(user: User) -> dict[str, str]:
    """Return what a command of this user has in its environment."""
    return {"HOME": user.home, "USER": user.name, "LOGNAME": user.name}


def encode(text: str) -> bytes:
    """As the kernel knows it."""
    try:
        name = text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise InvalidArgumentError("text that is neither Unicode nor escaped bytes") from None
    if b"\0" in name:
        raise InvalidArgumentError("a NUL byte in a text")
    return name


def show(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")
