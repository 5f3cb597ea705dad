"""`config.toml` of a state directory: what its owner has set for every program that uses the directory."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from paddock.errors import InvalidArgument
from paddock.keeper.layout import CONFIG, LEVELS, RETENTION_SECONDS
from paddock.model import Level

_LEVELS = ("container", "jail", "gvisor", "microvm")
_MOST_DAYS = 36_500


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


ACCEPTED: Mapping[str, tuple[str, Callable[[Any], bool]]] = {
    "level": (f"one of {', '.join(_LEVELS)}", lambda value: value in _LEVELS),
    "idle_exit_seconds": ("1 or more", lambda value: _is_number(value) and 1 <= value < 1e9),
    "paused_retention_days": ("more than 0", lambda value: _is_number(value) and 0 < value <= _MOST_DAYS),
    "audit_mib": ("0 (no limit) or more", lambda value: type(value) is int and 0 <= value < 1e9),
    "audit_days": ("0 (no limit) or more", lambda value: type(value) is int and 0 <= value < 1e9),
}
"""What each key may be."""


class Config(msgspec.Struct, frozen=True, kw_only=True):
    level: Level = Level.JAIL
    idle_exit_seconds: float = 600.0
    """So long after its last session and its last running sandbox the daemon leaves."""
    paused_retention_days: float = RETENTION_SECONDS / 86_400
    """For how long a paused sandbox is kept."""
    audit_mib: int = 512
    audit_days: int = 90
    """The audit log keeps no more, and nothing older. 0: without limit."""

    @property
    def retention_seconds(self) -> float:
        return self.paused_retention_days * 86_400

    def shown(self) -> dict[str, str]:
        """Return each key with the value that is in force."""
        values = {key: getattr(self, key) for key in ACCEPTED}
        return {key: f"{value:g}" if isinstance(value, float) else str(value) for key, value in values.items()}


def read_config(state_dir: Path) -> Config:
    """Return the settings of the directory. InvalidArgument: the file has anything that isn't in `ACCEPTED`."""
    file = state_dir / CONFIG
    try:
        data = file.read_bytes()
    except FileNotFoundError:
        return Config()
    except OSError as error:
        raise InvalidArgument(f"{file} can't be read: {os.strerror(error.errno or 0)}") from error
    import tomllib  # most state directories have no such file

    try:
        values = tomllib.loads(data.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise _refused(file, f"isn't valid TOML: {error}") from None
    for key, value in values.items():
        if key not in ACCEPTED:
            raise _refused(file, f"there is no key {key!r}")
        if not ACCEPTED[key][1](value):
            raise _refused(file, f"{key} = {value!r} isn't valid")
    level = Level(values.pop("level", Level.JAIL))
    return Config(level=level, **values)


def _refused(file: Path, why: str) -> InvalidArgument:
    keys = "; ".join(f"{key} ({words})" for key, (words, _) in ACCEPTED.items())
    return InvalidArgument(f"{file}: {why}", hint=f"accepted keys: {keys}")


def forget_figures(state_dir: Path, config: Config) -> str | None:
    """Delete the figures by which earlier releases chose a level, and return what to tell the one who starts first."""
    try:
        (state_dir / LEVELS).unlink()
    except OSError:
        return None
    return (
        "the default level doesn't depend on measurements any more: a sandbox for which no level is named is a"
        f" {config.level.value} from now on. To have another default, write a line such as"
        f' level = "gvisor" into {state_dir / CONFIG}'
    )
