"""Templates."""

from __future__ import annotations

import msgspec


class User(msgspec.Struct, frozen=True, kw_only=True):
    """An account inside the sandbox."""

    name: str
    uid: int
    gid: int
    home: str


class Template(msgspec.Struct, frozen=True, kw_only=True):
    """A built template.

    `layers` are names of trees in the pool, topmost first. Each contains a directory `root`.

    With `host_usr` the machine's /usr appears read-only in place of the tree's, and the tree's own /usr/local over
    that. `digest` identifies the recipe: the same recipe has the same digest.
    """

    name: str
    digest: str
    layers: tuple[str, ...]
    host_usr: bool
    users: tuple[User, ...]
    default_user: str
    workdir: str = "/workspace"
    env: dict[str, str] = {}

    def user(self, name: str | None) -> User | None:
        wanted = name or self.default_user
        for user in self.users:
            if user.name == wanted or str(user.uid) == wanted:
                return user
        return None
