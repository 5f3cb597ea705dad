"""`paddock secret`: values that sandboxes can use and never see. They come from stdin, never from a command line."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from . import _render
from ._values import add_json

if TYPE_CHECKING:
    from paddock.model import Secret, SecretValue

_MOST_BYTES = 1 << 20


def add(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(title="verbs", metavar="VERB", required=True)
    one = verbs.add_parser(
        "set",
        help="keep a value, or another one",
        description="Reads the value from stdin, or asks for it on a terminal. A newline at its end is not part of it.",
        allow_abbrev=False,
    )
    one.add_argument("name", metavar="NAME", help="as a variable is named")
    add_json(one)
    one.set_defaults(run=_set)
    two = verbs.add_parser("ls", help="what is kept; never values", allow_abbrev=False)
    add_json(two)
    two.set_defaults(run=_list)
    three = verbs.add_parser("rm", help="revoke: no sandbox can use it from now on", allow_abbrev=False)
    three.add_argument("name", nargs="+", metavar="NAME")
    add_json(three)
    three.set_defaults(run=_remove)
    four = verbs.add_parser("rekey", help="a new key for the keys of all secrets", allow_abbrev=False)
    add_json(four)
    four.set_defaults(run=_rekey)


def _set(options: argparse.Namespace) -> int:
    from paddock.client import default_transport
    from paddock.model import SetSecret

    secret = default_transport().perform(SetSecret(name=options.name, value=_read(options.name)))
    _show(secret, as_json=options.json)
    return 0


def _read(name: str) -> SecretValue:
    from paddock.model import SecretValue

    if sys.stdin.isatty():
        from getpass import getpass

        return SecretValue(getpass(f"value of {_render.escape(name)}: ").encode("utf-8", "surrogateescape"))
    data = sys.stdin.buffer.read(_MOST_BYTES)
    return SecretValue(data.removesuffix(b"\n").removesuffix(b"\r"))


def _show(secret: Secret, *, as_json: bool) -> None:
    if as_json:
        _render.document(secret)
    else:
        _render.line(f"{secret.name}, version {secret.version}")


def _list(options: argparse.Namespace) -> int:
    from paddock.client import default_transport
    from paddock.model import ListSecrets

    found = default_transport().perform(ListSecrets())
    if options.json:
        _render.document(found)
    elif found:
        rows = [
            (one.name, str(one.version), _render.when(one.updated_at), _when(one.used_at), one.key) for one in found
        ]
        _render.table(("NAME", "VERSION", "SET", "USED", "KEY"), rows)
    return 0


def _when(at: float | None) -> str:
    return "" if at is None else _render.when(at)


def _remove(options: argparse.Namespace) -> int:
    from paddock.client import default_transport
    from paddock.model import RemoveSecret

    transport = default_transport()
    for name in options.name:
        transport.perform(RemoveSecret(name=name))
    if options.json:
        _render.document(options.name)
    return 0


def _rekey(options: argparse.Namespace) -> int:
    from paddock.client import default_transport
    from paddock.model import RotateVaultKey

    count = default_transport().perform(RotateVaultKey())
    if options.json:
        _render.document({"sealed": count})
    else:
        _render.line(f"{count} sealed anew")
    return 0
