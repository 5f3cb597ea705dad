"""Where registries are, if a rule does not say: the index first, then where the files are."""

from __future__ import annotations

from paddock.model.policy import Registry

REGISTRIES: dict[Registry, tuple[str, ...]] = {
    "pypi": ("pypi.org", "files.pythonhosted.org"),
    "npm": ("registry.npmjs.org",),
    "crates": ("index.crates.io", "static.crates.io", "crates.io"),
    "debian": ("deb.debian.org", "security.debian.org"),
}
