"""Templates: built on first use, once, whole or not at all; found by the digest of their recipe ever after."""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from paddock.errors import NotFound, PaddockError
from paddock.keeper.layout import TEMPLATES
from paddock.model import Template, User
from paddock.storage import _host, _kit
from paddock.storage._base import Pool
from paddock.storage._recipe import Progress, Recipe
from paddock.storage._trees import DIRECTORY, ROOT, sync_file_system

_USERS = (
    User(name="root", uid=0, gid=0, home="/root"),
    User(name="user", uid=1000, gid=1000, home="/home/user"),
)


def _interpreter(machine: Path) -> Recipe:
    from paddock.storage import _interpreter  # importlib.metadata alone takes as long as two sandboxes

    return _interpreter.recipe(machine)


def _debian(machine: Path) -> Recipe:
    from paddock.storage import _debian

    return _debian.recipe(machine)


_RECIPES: dict[str, Callable[[Path], Recipe]] = {
    "code-interpreter": _interpreter,
    "debian": _debian,
    "host": _host.recipe,
}
_VERSION = re.compile(r"t[pb]_([a-z0-9_]+)_[0-9a-f]{12}", re.ASCII)
_BUILDING, _USED = ".lock", ".used"  # held alone by who builds or deletes; held together by all who use


class Templates:
    """The templates of one pool. May be used by several threads and by several processes at once.

    `machine` is the root directory whose facts go into templates. A template that was resolved once stays the same for
    the life of this object, whatever is installed on the machine meanwhile.
    """

    def __init__(self, pool: Pool, state_dir: Path, *, machine: Path = Path("/")) -> None:
        self._pool = pool
        self._locks = state_dir / TEMPLATES
        self._machine = machine
        self._resolved: dict[str, Template] = {}
        self._kit: str | None = None
        self._held: dict[str, int] = {}  # trees that this program uses, by descriptors of their locks

    def close(self) -> None:
        """Lets go of the versions that were in use here."""
        while self._held:
            os.close(self._held.popitem()[1])

    def names(self) -> tuple[str, ...]:
        return tuple(_RECIPES)

    def get(self, name: str, progress: Progress | None = None) -> Template:
        """The template, built if it is not there: up to minutes, so call it where waiting is allowed.

        `progress` is told what goes on, in words. NotFound; NotConfigured: something is missing on this machine;
        Unsupported; ResourceExhausted.
        """
        if (known := self._resolved.get(name)) is not None:
            return known
        make = _RECIPES.get(name)
        if make is None:
            raise NotFound(f"there is no template {name!r}", hint=f"one of {', '.join(_RECIPES)}", name=name)
        recipe = make(self._machine)
        template = Template(
            name=name,
            digest=recipe.digest,
            layers=self._layers(recipe, progress or _silent),
            host_usr=recipe.host_usr,
            users=_USERS,
            default_user="user",
            env=recipe.env,
        )
        return self._resolved.setdefault(name, template)

    def kit(self, progress: Progress | None = None) -> str:
        """The tree with the guest and what it needs (`_kit`), built and held as templates are. Unsupported."""
        if self._kit is None:
            self._kit = self.part(_kit.recipe(), progress)
        return self._kit

    def part(self, recipe: Recipe, progress: Progress | None = None) -> str:
        """A tree beside the kit, built and held as templates are. The recipe's name begins with `kit-`."""
        return self._layers(recipe, progress or _silent)[0]

    def versions(self) -> frozenset[str]:
        """The trees that templates would be made of now. What this machine cannot build has none."""
        found: set[str] = set()
        for make in (*_RECIPES.values(), _kit_recipe):
            with suppress(PaddockError):
                recipe: Recipe | None = make(self._machine)
                while recipe is not None:
                    found.add(recipe.tree)
                    recipe = recipe.below
        return frozenset(found)

    def is_version(self, tree: str) -> bool:
        """Whether a recipe of ours made it, or a builder has begun it: of these we know when they may go."""
        parts = _VERSION.fullmatch(tree)
        return parts is not None and (
            parts[1].replace("_", "-") in _RECIPES or parts[1] == "kit" or parts[1].startswith("kit_")
        )

    def discard(self, tree: str) -> bool:
        """Deletes one version, or what its builder has begun. False: a program that runs uses or builds it."""
        version = "tp" + tree[2:]
        with ExitStack() as stack:
            for lock in (_USED, _BUILDING):
                fd = self._open_lock(version, lock)
                stack.callback(os.close, fd)
                try:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    return False
            self._pool.delete(tree)
        return True

    def _layers(self, recipe: Recipe, progress: Progress) -> tuple[str, ...]:
        below = self._layers(recipe.below, progress) if recipe.below else ()
        self._hold(recipe.tree)
        if not self._built(recipe):
            with self._building(recipe, progress):
                if not self._built(recipe):  # by whoever held the lock
                    self._build(recipe, progress)
        return (recipe.tree, *below)

    def _hold(self, tree: str) -> None:
        """From before it is looked for until this program ends, nobody discards it: the kernel keeps the lock."""
        if tree not in self._held:
            fd = self._open_lock(tree, _USED)
            fcntl.flock(fd, fcntl.LOCK_SH)
            if self._held.setdefault(tree, fd) != fd:  # another thread was quicker
                os.close(fd)

    def _built(self, recipe: Recipe) -> bool:
        try:
            os.close(self._pool.open(recipe.tree))
        except NotFound:
            return False
        return True

    def _build(self, recipe: Recipe, progress: Progress) -> None:
        """Builds under another name: what has the name of a template is whole, also after a power loss."""
        scratch = "tb" + recipe.tree.removeprefix("tp")
        self._pool.delete(scratch)  # a killed builder's
        progress(f"building template {recipe.name}")
        self._pool.create(scratch)
        try:
            tree = self._pool.open(scratch)
            try:
                root = os.open(ROOT, DIRECTORY, dir_fd=tree)
                try:
                    recipe.fill(root, self._pool.porter, progress)
                    sync_file_system(root)
                finally:
                    os.close(root)
            finally:
                os.close(tree)
            self._pool.rename(scratch, recipe.tree)
        except BaseException:
            self._pool.delete(scratch)
            raise
        progress(f"template {recipe.name} is ready")

    @contextmanager
    def _building(self, recipe: Recipe, progress: Progress) -> Generator[None]:
        fd = self._open_lock(recipe.tree, _BUILDING)
        try:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                progress(f"template {recipe.name} is being built by another process")
                fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)

    def _open_lock(self, tree: str, kind: str) -> int:
        self._locks.mkdir(mode=0o700, exist_ok=True)
        return os.open(self._locks / (tree + kind), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)


def _kit_recipe(machine: Path) -> Recipe:
    return _kit.recipe()


def _silent(_: str) -> None: ...
