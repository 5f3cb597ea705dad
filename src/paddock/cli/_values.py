"""The syntax of values on the command line."""

from __future__ import annotations

import argparse
import os
import re
import time

from ._usage import argument, exclusive, group, together

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from paddock.model import Mount

    from ._usage import Part

_SIZE = re.compile(r"(\d+)(m|mib|g|gib)?", re.IGNORECASE)
_TIME = re.compile(r"(\d+(?:\.\d+)?)(s|m|h|d)?")


def mebibytes(text: str) -> int:
    """`512`, `512m`, `2g`."""
    match = _SIZE.fullmatch(text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} isn't a size: write 512 (MiB), 512m or 2g")
    return int(match[1]) * (1024 if (match[2] or "m").lower().startswith("g") else 1)


def seconds(text: str) -> float:
    """`90`, `1.5s`, `5m`, `2h`."""
    match = _TIME.fullmatch(text)
    if match is None or not float(match[1]):
        raise argparse.ArgumentTypeError(f"{text!r} isn't a duration: write 90 (seconds), 5m, 2h or 1d")
    return float(match[1]) * {"s": 1, "m": 60, "h": 3600, "d": 86_400}[match[2] or "s"]


def age(text: str) -> float:
    """Return the same, and 0: no age at all."""
    return 0.0 if text in ("0", "0s") else seconds(text)


def positive(text: str) -> int:
    """`20`."""
    if not text.isascii() or not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return int(text)


def moment(text: str) -> float:
    """Parse a time to seconds since the epoch.

    `10m` is ten minutes ago. `2026-01-31` and `2026-01-31T12:00` are local times.
    """
    if _TIME.fullmatch(text):
        return time.time() - seconds(text)
    from datetime import datetime

    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time: write 10m (ago) or 2026-01-31T12:00") from None


def output(text: str) -> str:
    """Check that a file can be written there, before the work whose result it takes. `-` is stdout."""
    directory = os.path.dirname(text) or "."
    why = None
    if not text:
        why = "it has no name"
    elif os.path.isdir(text):
        why = "it is a directory"
    elif not os.path.isdir(directory):
        why = f"there is no directory {directory!r}"
    elif not os.access(text if os.path.exists(text) else directory, os.W_OK):
        why = "you may not"
    if why is not None and text != "-":
        raise argparse.ArgumentTypeError(f"{text!r} can't be written: {why}")
    return text


def principal(text: str) -> str:
    """Parse who asked: the name of a user of this machine, or the id of a principal, which has a colon."""
    if ":" in text:
        return text
    import pwd

    try:
        return f"local:{pwd.getpwnam(text).pw_uid}"
    except KeyError:
        raise argparse.ArgumentTypeError(f"this machine has no user {text!r}") from None


def pair(text: str) -> tuple[str, str]:
    """`NAME=VALUE`."""
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not NAME=VALUE" + (f': write {text}="${text}"' if text.isidentifier() else "")
        )
    return name, value


def _names(text: str) -> tuple[str, ...]:
    """`pypi,api.github.com`."""
    return tuple(filter(None, text.split(",")))


def command(words: list[str]) -> list[str]:
    """Without the `--` before it."""
    return words[1:] if words[:1] == ["--"] else words


SANDBOX = argument("sandbox", metavar="ID", help="id, unique prefix of one, or name")


WORKSPACE = argument("workspace", metavar="TASK", help="a workspace, or a sandbox with one: id, prefix, or name")
ENV = argument(
    "--env", type=pair, action="append", default=[], metavar="NAME=VALUE", help="a variable; may be given several times"
)


IDLE = argument(
    "--idle", type=seconds, metavar="TIME", help="pause it when it was unused for so long; any use resumes it"
)


IMAGES = ("oci:", "oci-archive:", "docker-archive:", "docker://")  # as in `paddock.model`, which `run` does not load


class _Image(argparse.Action):
    """`python:3.12`, as Docker names it, or an image's full name.

    Not a `type`: argparse would apply that to the default of `--template`, which has the same place.
    """

    def __call__(self, parser: object, namespace: argparse.Namespace, image: Any, option: str | None = None) -> None:
        setattr(namespace, self.dest, image if image.startswith(IMAGES) else f"docker://{image}")


_TEMPLATE = exclusive(
    argument("--template", default="host", help="its files: `paddock template ls`, or an image (default: host)"),
    argument(
        "--image", dest="template", action=_Image, metavar="IMAGE", help="as Docker names it, or docker-archive:FILE"
    ),
)
_FILES = together(
    argument("--snapshot", metavar="SNAPSHOT", help="start with its files: id, unique prefix, or name"),
    argument(
        "--mount",
        action="append",
        default=[],
        metavar="DIR[:TARGET][:ro|:rw]",
        help="show a directory of the host (default: at /workspace). Changes stay inside, unless :rw",
    ),
)


def sandbox_spec(*, ttl_seconds: float = 300.0, template: bool = True, files: bool = True) -> Part:
    """Return the part about the sandbox's properties. `template`, `files`: also about those."""
    return group(
        "the sandbox",
        *((_TEMPLATE,) if template else ()),
        argument(
            "--level",
            help="isolation: jail, gvisor, microvm or container; never a weaker one (default: jail, or config.toml's:"
            " `paddock doctor` shows it)",
        ),
        argument(
            "--ttl",
            type=seconds,
            default=ttl_seconds,
            metavar="TIME",
            help=f"it ends after that: 90 (seconds), 5m, 2h, 1d (default: {ttl_seconds / 60:g}m)",
        ),
        argument("--memory", type=mebibytes, metavar="SIZE", help="512 (MiB), 512m or 2g (default: 2g)"),
        argument("--cpus", type=float, metavar="N", help="1.5 is one and a half cores (default: 2)"),
        argument("--disk", type=mebibytes, metavar="SIZE", help="512 (MiB), 512m or 2g (default: 4g)"),
        argument("--processes", type=int, metavar="N", help="at most so many at a time (default: 512)"),
        argument(
            "--network",
            type=_names,
            metavar="NAME,...",
            help="what it may reach: hosts, registries such as pypi, or an index: pypi=https://pypi.example.com/simple"
            " (default: no network)",
        ),
        argument("--policy", metavar="FILE", help="what it may reach and do: a paddock.yaml, in place of --network"),
        *((_FILES,) if files else ()),
    )


HOW = together(
    argument("--timeout", type=seconds, metavar="TIME", help="end it after that, with all that it started: 30s, 5m"),
    ENV,
    argument("--user", metavar="NAME", help="a user of the sandbox, such as root"),
    argument("--cwd", metavar="PATH", help="the directory it starts in (default: the template's, /workspace)"),
)
"""Arguments about a command's directory, environment, user and limits."""
COMMAND = together(
    group(
        "the command",
        HOW,
        argument("-t", "--tty", action="store_true", help="run it on this terminal, as ssh does: see `paddock sh`"),
        argument("-i", "--interactive", action="store_true", help="pass stdin even if it is a terminal"),
        argument("--wait", action="store_true", help="wait for the approval that the policy asks for, at most 15m"),
    ),
    argument("command", nargs=argparse.REMAINDER, metavar="-- COMMAND ..."),
)


def spec(options: argparse.Namespace, *more: Mount) -> dict[str, Any]:
    """Return the arguments of `sandbox_spec` in the form of `Sandbox.create`, with `more` mounts before the
    given ones.
    """
    names = {"memory_mib": "memory", "cpus": "cpus", "disk_mib": "disk", "processes": "processes"}
    limits = {limit: value for limit, name in names.items() if (value := getattr(options, name)) is not None}
    return {
        "template": getattr(options, "template", "host"),
        "level": options.level,
        "ttl": options.ttl,
        "limits": limits,
        "mounts": (*more, *map(mount, getattr(options, "mount", ()))),
        "snapshot": getattr(options, "snapshot", None),
        "network": options.network or False,
        "policy": options.policy,
    }


def mount(text: str) -> Mount:
    """`DIR`, `DIR:TARGET`, either with `:ro` or `:rw` at its end. InvalidArgumentError."""
    from paddock.errors import InvalidArgumentError
    from paddock.model import Mount, MountMode

    rest, colon, last = text.rpartition(":")
    mode = MountMode.COPY_ON_WRITE
    if colon and last in tuple(MountMode):
        text, mode = rest, MountMode(last)
    source, _, target = text.partition(":")
    if not source or ":" in target:
        raise InvalidArgumentError(
            f"{text!r} is not a mount", hint="--mount DIR, DIR:/target, DIR:ro or DIR:/target:ro"
        )
    return Mount(source=source, mode=mode, **({"target": target} if target else {}))
