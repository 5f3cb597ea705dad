"""`paddock secret`: values that sandboxes can use and never see. They come from stdin, never from a command line."""

from __future__ import annotations

import argparse
import sys

from paddock import model

from . import _render
from ._answer import answer, listing, perform
from ._usage import Verbs, argument, usage

_MOST_BYTES = 1 << 20


@usage(argument("name", metavar="NAME", help="as a variable is named"))
def _set(options: argparse.Namespace) -> int:
    """Keep a value, or another one. Reads the value from stdin, or asks for it on a terminal. A newline at its end is
    not part of it."""
    secret = perform(model.SetSecret(name=options.name, value=_read(options.name)))
    return answer(options, secret, lambda: _render.line(f"{secret.name}, version {secret.version}"))


def _read(name: str) -> model.SecretValue:
    if sys.stdin.isatty():
        from getpass import getpass

        return model.SecretValue(getpass(f"value of {_render.escape(name)}: ").encode("utf-8", "surrogateescape"))
    data = sys.stdin.buffer.read(_MOST_BYTES)
    return model.SecretValue(data.removesuffix(b"\n").removesuffix(b"\r"))


@usage()
def _list(options: argparse.Namespace) -> int:
    """List the secrets, never values."""
    found = perform(model.ListSecrets())
    headings = ("NAME", "VERSION", "SET", "USED", "KEY")
    return listing(
        options,
        found,
        headings,
        lambda one: (one.name, str(one.version), _render.when(one.updated_at), _render.when(one.used_at), one.key),
        "no secrets: paddock secret set NAME",
    )


@usage(argument("name", nargs="+", metavar="NAME"))
def _remove(options: argparse.Namespace) -> int:
    """Revoke secrets: no sandbox can use them from now on."""
    for name in options.name:
        perform(model.RemoveSecret(name=name))
    return answer(options, options.name)


@usage()
def _rekey(options: argparse.Namespace) -> int:
    """Make a new key for the keys of all secrets."""
    count = perform(model.RotateVaultKey())
    return answer(options, {"sealed": count}, lambda: _render.line(f"{count} sealed anew"))


verb_secret = Verbs(set=_set, ls=_list, rm=_remove, rekey=_rekey)
