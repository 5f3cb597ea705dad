"""The template `host`: this machine's /usr below an /etc for sandboxes.

It takes only the files listed here from the machine's /etc, and only if all of its users may read them.
"""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

from paddock.errors import UnsupportedError
from paddock.storage.templates.recipe import (
    FOLDER,
    PATH,
    Entry,
    Manifest,
    Recipe,
    manifest_digest,
    put,
    writes,
)

_VERSION = "2"
_LARGEST = 8 << 20

# Files beside /usr that its programs need. The template leaves out missing ones, and ones that some users can't read.
_TAKEN = (
    "etc/adduser.conf",
    "etc/debian_version",
    "etc/default/useradd",
    "etc/deluser.conf",
    "etc/inputrc",
    "etc/ld.so.cache",
    "etc/ld.so.conf",
    "etc/locale.alias",
    "etc/login.defs",
    "etc/manpath.config",
    "etc/maven/logging/simplelogger.properties",
    "etc/maven/m2.conf",  # without settings.xml, which may hold passwords
    "etc/mime.types",
    "etc/os-release",
    "etc/pki/tls/certs/ca-bundle.crt",
    "etc/protocols",
    "etc/services",
    "etc/ssl/certs/ca-certificates.crt",
    "etc/ssl/certs/java/cacerts",
    "etc/ssl/openssl.cnf",
)
_TAKEN_DIRECTORIES = {
    "etc/ld.so.conf.d": re.compile(r"[\w.+-]+\.conf", re.ASCII),
    "etc/skel": re.compile(r"\.\w+", re.ASCII),
    "etc/chromium.d": re.compile(r"[\w+-]+", re.ASCII),  # Debian's chromium does not start without one
}
# Debian's Java reads this first: /usr/lib/jvm leads there.
_TAKEN_TREES = re.compile(r"java-[\w.+-]+", re.ASCII)
_LINKS_INTO_USR = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
_ALTERNATIVE = re.compile(r"/(usr|bin|sbin|lib\w*|etc/alternatives)/[\x21-\x7e]+", re.ASCII)

_DIRECTORIES = (
    *("boot", "dev", "etc", "home", "media", "mnt", "opt", "proc", "run", "srv", "sys", "usr", "var"),
    *("etc/chromium", "etc/chromium/policies", "etc/chromium/policies/managed"),
    *("etc/opt", "etc/opt/chrome", "etc/opt/chrome/policies", "etc/opt/chrome/policies/managed"),
    *("etc/alternatives", "etc/pam.d", "etc/profile.d", "etc/skel", "etc/ssl", "etc/ssl/certs", "run/lock"),
    "usr/local",
    *(f"usr/local/{name}" for name in ("bin", "etc", "games", "include", "lib", "sbin", "share", "share/man", "src")),
    *(f"var/{name}" for name in ("cache", "lib", "log", "opt", "spool")),
)

_WRITTEN = {
    "etc/passwd": (
        "root:x:0:0:root:/root:/bin/bash\n"
        "user:x:1000:1000:user:/home/user:/bin/bash\n"
        "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
    ),
    "etc/group": "root:x:0:\ntty:x:5:\nmail:x:8:\nstaff:x:50:\nusers:x:100:\nuser:x:1000:\nnogroup:x:65534:\n",
    # `su` from root needs no password, and no other user has one.
    **dict.fromkeys(
        ("etc/pam.d/other", "etc/pam.d/su", "etc/pam.d/su-l"),
        "auth sufficient pam_rootok.so\nauth required pam_deny.so\naccount required pam_permit.so\n"
        "password required pam_permit.so\nsession required pam_permit.so\n",
    ),
    "etc/hosts": "127.0.0.1\tlocalhost sandbox\n::1\tlocalhost ip6-localhost ip6-loopback\n",
    "etc/hostname": "sandbox\n",
    "etc/host.conf": "multi on\n",
    "etc/resolv.conf": "",
    "etc/nsswitch.conf": (
        "passwd: files\ngroup: files\nshadow: files\nhosts: files dns\nnetworks: files\n"
        "protocols: files\nservices: files\nethers: files\nrpc: files\n"
    ),
    # Mount targets for the certificates of browsers (`supervisor/trust_places.py`).
    "etc/chromium/policies/managed/paddock.json": "{}\n",
    "etc/opt/chrome/policies/managed/paddock.json": "{}\n",
    "etc/timezone": "Etc/UTC\n",
    "etc/machine-id": "",
    "etc/shells": "/bin/sh\n/bin/bash\n",
    "etc/profile": f'export PATH={PATH}\numask 022\n[ -z "$BASH" ] || . /etc/bash.bashrc\n',
    "etc/bash.bashrc": "[ -z \"$PS1\" ] || PS1='\\u@\\h:\\w\\$ '\n",
    # All files of a workspace belong to the sandbox, so git needn't ask which user owns them.
    "etc/gitconfig": "[safe]\n\tdirectory = *\n[init]\n\tdefaultBranch = main\n",
}
_LINKS = {"etc/mtab": "../proc/self/mounts", "etc/localtime": "/usr/share/zoneinfo/Etc/UTC", "var/run": "/run"}


def recipe(machine: Path) -> Recipe:
    """Return the recipe. UnsupportedError: the machine keeps programs outside /usr."""
    files = manifest(machine)
    return Recipe(name="host", facts=(_VERSION, manifest_digest(files)), fill=writes(lambda: files))


def manifest(machine: Path) -> Manifest:
    files: dict[str, Entry] = {".": FOLDER}
    for path in _DIRECTORIES:
        files[path] = FOLDER
    files["root"] = Entry("directory", 0o700)
    for path in ("home/user", "workspace"):
        files[path] = Entry("directory", 0o755, uid=1000, gid=1000)
    for path in ("tmp", "var/tmp"):
        files[path] = Entry("directory", 0o1777)
    packages = python_packages(machine)
    if packages is not None:
        put(files, packages.removeprefix("/"), FOLDER)
        if not os.path.lexists(machine / "usr/bin/python"):
            files["usr/local/bin/python"] = Entry("link", 0o777, b"/usr/bin/python3")
    for path, text in _WRITTEN.items():
        files[path] = Entry("file", 0o644, text.encode())
    for path, target in _LINKS.items():
        files[path] = Entry("link", 0o777, target.encode())
    _add_links_into_usr(files, machine)
    _add_alternatives(files, machine)
    _add_taken(files, machine)
    return files


def python_packages(machine: Path) -> str | None:
    """Return the directory of packages beside the machine's /usr/bin/python3. None: it has no such interpreter.

    Debian's own site.py looks into dist-packages (README.Debian of python3.11). Every other one needs PYTHONPATH.
    """
    version = python_version(machine)
    if version is None:
        return None
    kind = "dist-packages" if (machine / "usr/lib/python3/dist-packages").is_dir() else "site-packages"
    return f"/usr/local/lib/python3.{version}/{kind}"


def python_version(machine: Path) -> int | None:
    """Return the minor version of the machine's /usr/bin/python3, from the name of its link target."""
    try:
        target = os.readlink(machine / "usr/bin/python3")
    except OSError:
        return None
    found = re.fullmatch(r"(?:/usr/bin/)?python3\.(\d+)", target, re.ASCII)
    return int(found[1]) if found else None


def _add_links_into_usr(files: dict[str, Entry], machine: Path) -> None:
    for name in _LINKS_INTO_USR:
        place = machine / name
        if place.is_symlink():
            files[name] = Entry("link", 0o777, f"usr/{name}".encode())
        elif place.exists():
            raise UnsupportedError(
                f"/{name} of this machine is not a link into /usr, so a template of /usr alone would lack it",
                hint="use the template debian",
            )


def _add_alternatives(files: dict[str, Entry], machine: Path) -> None:
    """Add the link targets of names in /usr/bin on Debian (update-alternatives(1))."""
    try:
        entries = sorted(os.scandir(machine / "etc/alternatives"), key=lambda entry: entry.name)
    except OSError:
        return
    for entry in entries:
        if entry.is_symlink():
            target = os.readlink(entry.path)
            if _ALTERNATIVE.fullmatch(target):
                files[f"etc/alternatives/{entry.name}"] = Entry("link", 0o777, target.encode())


def _add_taken(files: dict[str, Entry], machine: Path) -> None:
    wanted = list(_TAKEN)
    for directory, pattern in _TAKEN_DIRECTORIES.items():
        try:
            names = sorted(os.listdir(machine / directory))
        except OSError:
            continue
        wanted += [f"{directory}/{name}" for name in names if pattern.fullmatch(name)]
    for path in (*wanted, *_taken_trees(machine)):
        content = _read_as_anybody(machine / path)
        if content is not None:
            put(files, path, Entry("file", 0o644, content))


def _taken_trees(machine: Path) -> list[str]:
    tops = sorted(entry for entry in (machine / "etc").glob("*") if _TAKEN_TREES.fullmatch(entry.name))
    found = (
        os.path.join(folder, name)
        for top in tops
        if not top.is_symlink()
        for folder, _, names in os.walk(top)
        for name in sorted(names)
        if not os.path.islink(os.path.join(folder, name))
    )
    return [os.path.relpath(path, machine) for path in found]


def _read_as_anybody(path: Path) -> bytes | None:
    """Read a file if every user of the machine may read it: paddock may be root, a sandbox isn't."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    with os.fdopen(fd, "rb") as file:
        info = os.fstat(fd)
        if not stat.S_ISREG(info.st_mode) or not info.st_mode & stat.S_IROTH or info.st_size > _LARGEST:
            return None
        return file.read(_LARGEST)
