"""Templates: built on first use, once and atomically. Later uses find them by the digest of their recipe."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

from paddock.errors import NotFoundError, PaddockError, logged
from paddock.model import Template, TemplateInfo, User
from paddock.storage.pool.base import Pool
from paddock.storage.pool.trees import is_there
from paddock.storage.templates import kit
from paddock.storage.templates.recipe import Progress, Recipe, Versions

_USERS = (
    User(name="root", uid=0, gid=0, home="/root"),
    User(name="user", uid=1000, gid=1000, home="/home/user"),
)


_RECIPES = {"code-interpreter": "_interpreter", "debian": "_debian", "host": "_host"}
"""The module of each template. Only a build imports it, because `importlib.metadata` takes as long as a sandbox."""
_INSIDE = {
    "code-interpreter": "`host` and pytest, for this machine's own Python",
    "debian": "a Debian of its own, with apt",
    "host": "this machine's /usr, read-only, and an /etc made for sandboxes",
}
_VERSION = re.compile(r"t[pb]_([a-z0-9_]+)_[0-9a-f]{12}", re.ASCII)


class Templates:
    """The templates of `pool`.

    Several threads can use it at once.

    `machine` is the root directory from which templates take files. A resolved template stays the same for the life of
    this object, even if the machine's packages change.
    """

    def __init__(self, pool: Pool, *, machine: Path = Path("/")) -> None:
        self.pool = pool
        self._versions = Versions(pool)
        self._machine = machine
        self._resolved: dict[str, Template] = {}
        self._kit: str | None = None

    def names(self) -> tuple[str, ...]:
        return tuple(_RECIPES)

    def list(self) -> tuple[TemplateInfo, ...]:
        """Return all by name, and whether each is built. Reads the facts that recipes hold."""
        found: list[TemplateInfo] = []
        for name, inside in _INSIDE.items():
            try:
                state, detail = "built" if is_there(self.pool, self._recipe(name).tree) else "not built", inside
            except PaddockError as error:
                state, detail = "missing", str(error)
            found.append(TemplateInfo(name=name, state=state, detail=detail))
        return tuple(found)

    def get(self, name: str, progress: Progress | None = None) -> Template:
        """Return the template.

        If it is missing, build it, which takes up to minutes and blocks.

        `progress` gets messages about the build. Raises NotFoundError, NotConfiguredError if the machine lacks
        something, UnsupportedError and ResourceExhaustedError.
        """
        if (known := self._resolved.get(name)) is not None:
            return known
        if name not in _RECIPES:
            raise NotFoundError(f"there is no template {name!r}", hint=f"one of {', '.join(_RECIPES)}", name=name)
        recipe = self._recipe(name)
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

    def kit(self) -> str:
        """Return the tree with the interpreter of the VMM controllers (`kit`), built and kept as templates are.
        Unsupported."""
        if self._kit is None:
            self._kit = self.part(kit.recipe())
        return self._kit

    def part(self, recipe: Recipe) -> str:
        """Return a tree beside the kit, built and kept as templates are. The recipe's name begins with `kit-`."""
        return self._layers(recipe, _silent)[0]

    def versions(self) -> frozenset[str]:
        """Return the trees that templates would have now. Templates that this machine can't build have none."""
        found: set[str] = set()
        for name in (*_RECIPES, "kit"):
            with logged("name the versions of the template", name):
                recipe: Recipe | None = kit.recipe() if name == "kit" else self._recipe(name)
                while recipe is not None:
                    found.add(recipe.tree)
                    recipe = recipe.below
        return frozenset(found)

    def is_version(self, tree: str) -> bool:
        """Tell whether a recipe of ours made the tree, or a builder has begun it."""
        parts = _VERSION.fullmatch(tree)
        return parts is not None and (
            parts[1].replace("_", "-") in _RECIPES or parts[1] == "kit" or parts[1].startswith("kit_")
        )

    def discard(self, tree: str) -> bool:
        """Delete one version, or the remains of its build. Return False if it is in use or under construction."""
        return self._versions.discard(tree)

    def _recipe(self, name: str) -> Recipe:
        return import_module(f"{__package__}.{_RECIPES[name]}").recipe(self._machine)

    def _layers(self, recipe: Recipe, progress: Progress) -> tuple[str, ...]:
        below = self._layers(recipe.below, progress) if recipe.below else ()
        self._versions.ensure(
            recipe.tree,
            f"template {recipe.name}",
            lambda _, root: recipe.fill(root, self.pool.worker, progress),
            progress,
        )
        return (recipe.tree, *below)


def _silent(_: str) -> None: ...
