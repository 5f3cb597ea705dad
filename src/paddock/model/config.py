"""The settings in `config.toml` of a state directory, by its owner, for all programs that use the directory."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from paddock.errors import InvalidArgumentError

from .sandbox import Level

FILE = "config.toml"
_LEVELS = ("container", "jail", "gvisor", "microvm")
_DRIVERS = ("btrfs", "overlay", "copy")
_PLATFORMS = ("kvm", "systrap", "ptrace")
_MOST_DAYS = 36_500
_Rule = tuple[str, Callable[[Any], bool]]


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_path(value: object) -> bool:
    return isinstance(value, str) and os.path.isabs(value) and "\0" not in value


def _is_command(value: object) -> bool:
    try:
        return bool(msgspec.convert(value, list[str]))
    except msgspec.ValidationError:
        return False


def _one_of(*names: str) -> _Rule:
    return f"one of {', '.join(names)}", lambda value: value in names


_SIZE: _Rule = ("0 (no limit) or more", lambda value: type(value) is int and 0 <= value < 1e9)
_COUNT: _Rule = ("0 or more", lambda value: type(value) is int and 0 <= value < 1e6)
_YES_OR_NO: _Rule = ("true or false", lambda value: isinstance(value, bool))
_PATH: _Rule = ("an absolute path", _is_path)

ACCEPTED: Mapping[str, _Rule] = {
    "level": _one_of(*_LEVELS),
    "idle_exit_seconds": ("1 or more", lambda value: _is_number(value) and 1 <= value < 1e9),
    "paused_retention_days": ("more than 0", lambda value: _is_number(value) and 0 < value <= _MOST_DAYS),
    "memory_mib": _SIZE,
    "disk_mib": _SIZE,
    "audit_mib": _SIZE,
    "audit_days": _SIZE,
    "audit_key_file": _PATH,
    "vault_key_file": _PATH,
    "vault_key_command": ("a command and its arguments, as a list", _is_command),
    "vault_keyring": _YES_OR_NO,
    "approval_webhook": ("an address", lambda value: isinstance(value, str)),
    "approval_webhook_key_file": _PATH,
    "package_cache_mib": _COUNT,
    "pool_driver": _one_of(*_DRIVERS),
    "subordinate_ids": _YES_OR_NO,
    "spares": _COUNT,
    "runsc": _PATH,
    "gvisor_platform": _one_of(*_PLATFORMS),
    "accelerator": _one_of("tcg"),
    "kernel": _PATH,
}
"""The valid values of each key: a description and a check."""


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """The settings, with their defaults."""

    level: Level = Level.JAIL
    idle_exit_seconds: float = 600.0
    """Seconds after its last session and its last running sandbox until the daemon exits."""
    paused_retention_days: float = 30.0
    """Days for which paddock keeps a paused sandbox."""
    memory_mib: int = 0
    disk_mib: int = 0
    """The most that the limits of all living sandboxes may add up to. 0: no limit."""
    audit_mib: int = 512
    audit_days: int = 90
    """The audit log keeps no more, and nothing older. 0: without limit."""
    audit_key_file: str | None = None
    vault_key_file: str | None = None
    vault_key_command: tuple[str, ...] | None = None
    vault_keyring: bool = False
    approval_webhook: str | None = None
    approval_webhook_key_file: str | None = None
    package_cache_mib: int = 4096
    pool_driver: str | None = None
    subordinate_ids: bool = False
    spares: int | None = None
    """Spares of each kind of jail, gVisor sandbox and virtual machine. None: one, from the second create on."""
    runsc: str | None = None
    gvisor_platform: str | None = None
    accelerator: str | None = None
    kernel: str | None = None

    @property
    def retention_seconds(self) -> float:
        return self.paused_retention_days * 86_400

    def shown(self) -> dict[str, str]:
        """Return each key that has a value with the one that is in force."""
        values = {key: getattr(self, key) for key in ACCEPTED}
        values["vault_key_command"] = self.vault_key_command and " ".join(self.vault_key_command)
        return {key: _text(value) for key, value in values.items() if value is not None}


def _text(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def read_config(state_dir: Path) -> Config:
    """Return the settings of the directory. InvalidArgumentError: the file has anything that isn't in `ACCEPTED`."""
    file = state_dir / FILE
    try:
        data = file.read_bytes()
    except FileNotFoundError:
        return Config()
    except OSError as error:
        raise InvalidArgumentError(f"{file} can't be read: {os.strerror(error.errno or 0)}") from error
    import tomllib  # most state directories have no such file
    from difflib import get_close_matches

    try:
        values = tomllib.loads(data.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidArgumentError(f"{file} isn't valid TOML: {error}", hint='level = "jail"') from None
    for key, value in values.items():
        if key not in ACCEPTED:
            near = get_close_matches(key, ACCEPTED, 1)
            hint = f"{near[0]} ({ACCEPTED[near[0]][0]})" if near else f"accepted keys: {', '.join(ACCEPTED)}"
            raise InvalidArgumentError(f"{file}: there is no key {key!r}", hint=hint)
        if not ACCEPTED[key][1](value):
            raise InvalidArgumentError(f"{file}: {key} = {value!r} isn't valid", hint=f"{key} ({ACCEPTED[key][0]})")
    if len(keys := [key for key in values if key.startswith("vault_key")]) > 1:
        raise InvalidArgumentError(f"{file}: {' and '.join(keys)} name one key in two places", hint="keep one of them")
    return msgspec.convert(values, Config)
