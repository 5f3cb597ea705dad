"""The settings in `config.toml` of a state directory, by its owner, for all programs that use the directory."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias, get_type_hints

import msgspec
from msgspec import Meta

from paddock.errors import InvalidArgumentError

from .sandbox import Level

FILE = "config.toml"
_LEVELS = ("container", "jail", "gvisor", "microvm")

_Size: TypeAlias = Annotated[int, Meta(ge=0, lt=1_000_000_000, description="0 (no limit) or more")]
_Path: TypeAlias = Annotated[str, Meta(pattern=r"^/[^\0]*$", description="an absolute path")]
_Count: TypeAlias = Annotated[int, Meta(ge=0, lt=1_000_000, description="0 or more")]
_Command: TypeAlias = Annotated[
    tuple[str, ...], Meta(min_length=1, description="a command and its arguments, as a list")
]
_Driver: TypeAlias = Annotated[Literal["btrfs", "overlay", "copy"], Meta(description="one of btrfs, overlay, copy")]
_Platform: TypeAlias = Annotated[Literal["kvm", "systrap", "ptrace"], Meta(description="one of kvm, systrap, ptrace")]
_YesOrNo: TypeAlias = Annotated[bool, Meta(description="true or false")]


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """The settings, with their defaults and their valid values."""

    level: Annotated[Level, Meta(description=f"one of {', '.join(_LEVELS)}")] = Level.JAIL
    idle_exit_seconds: Annotated[float, Meta(ge=1, lt=1e9, description="1 or more")] = 600.0
    """Seconds after its last session and its last running sandbox until the daemon exits."""
    paused_retention_days: Annotated[float, Meta(gt=0, le=36_500, description="more than 0")] = 30.0
    """Days for which paddock keeps a paused sandbox."""
    memory_mib: _Size = 0
    disk_mib: _Size = 0
    """The most that the limits of all living sandboxes may add up to. 0: no limit."""
    audit_mib: _Size = 512
    audit_days: _Size = 90
    """The audit log keeps no more, and nothing older. 0: without limit."""
    audit_key_file: _Path | None = None
    vault_key_file: _Path | None = None
    vault_key_command: _Command | None = None
    vault_keyring: _YesOrNo = False
    approval_webhook: Annotated[str, Meta(description="an address")] | None = None
    approval_webhook_key_file: _Path | None = None
    package_cache_mib: _Count = 4096
    pool_driver: _Driver | None = None
    subordinate_ids: _YesOrNo = False
    spares: _Count | None = None
    """Spares of each kind of jail, gVisor sandbox and virtual machine. None: one, from the second create on."""
    runsc: _Path | None = None
    gvisor_platform: _Platform | None = None
    accelerator: Annotated[Literal["tcg"], Meta(description="one of tcg")] | None = None
    kernel: _Path | None = None

    def __post_init__(self) -> None:
        if self.level not in _LEVELS:
            raise ValueError(f"{self.level} isn't a default level")

    @property
    def retention_seconds(self) -> float:
        return self.paused_retention_days * 86_400

    def shown(self) -> dict[str, str]:
        """Return each key that has a value with the one that is in force."""
        values = {key: getattr(self, key) for key in self.__struct_fields__}
        values["vault_key_command"] = self.vault_key_command and " ".join(self.vault_key_command)
        return {key: _text(value) for key, value in values.items() if value is not None}


def _text(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def _description(kind: Any) -> str:
    """Return the valid values of a setting, which may have none."""
    meta = getattr(kind, "__metadata__", None) or kind.__args__[0].__metadata__
    return meta[0].description


def read_config(state_dir: Path) -> Config:
    """Return the settings of the directory. InvalidArgumentError: the file has an unknown key or an invalid value."""
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
    accepted = {key: _description(kind) for key, kind in get_type_hints(Config, include_extras=True).items()}
    for key, value in values.items():
        if key not in accepted:
            near = get_close_matches(key, accepted, 1)
            hint = f"{near[0]} ({accepted[near[0]]})" if near else f"accepted keys: {', '.join(accepted)}"
            raise InvalidArgumentError(f"{file}: there is no key {key!r}", hint=hint)
        try:
            msgspec.convert({key: value}, Config)
        except msgspec.ValidationError:
            raise InvalidArgumentError(
                f"{file}: {key} = {value!r} isn't valid", hint=f"{key} ({accepted[key]})"
            ) from None
    if len(keys := [key for key in values if key.startswith("vault_key")]) > 1:
        raise InvalidArgumentError(f"{file}: {' and '.join(keys)} name one key in two places", hint="keep one of them")
    return msgspec.convert(values, Config)
