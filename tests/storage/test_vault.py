"""Secrets at rest: what is sealed opens in its own place, with its own key, and nowhere else."""

from __future__ import annotations

import base64
import os
import re
import sys
from pathlib import Path
from types import ModuleType

import msgspec
import pytest

from paddock.errors import NotConfiguredError, SecretUnavailableError
from paddock.model.config import Config
from paddock.storage.secrets.vault import (
    CommandKeys,
    FileKeys,
    KeyringKeys,
    SealedValue,
    ValuePlace,
    Vault,
    VaultKeys,
    key_id,
    open_keys,
)

HERE = ValuePlace("local:1", "TOKEN", 1)
VALUE = b"correct horse battery staple"


@pytest.fixture
def vault(tmp_path: Path) -> Vault:
    return Vault(FileKeys(tmp_path / "vault.key"))


def test_what_is_sealed_opens_and_is_not_there_in_clear(vault: Vault, tmp_path: Path) -> None:
    sealed = vault.seal(VALUE, HERE)
    assert vault.open(sealed, HERE) == VALUE
    assert VALUE not in msgspec.msgpack.encode(sealed)
    assert Vault(FileKeys(tmp_path / "vault.key")).open(sealed, HERE) == VALUE
    assert vault.seal(VALUE, HERE) != sealed  # neither data key nor nonce come twice


@pytest.mark.parametrize(
    "elsewhere",
    [ValuePlace("local:2", "TOKEN", 1), ValuePlace("local:1", "OTHER", 1), ValuePlace("local:1", "TOKEN", 2)],
)
def test_a_row_cannot_be_moved_to_another_owner_name_or_version(vault: Vault, elsewhere: ValuePlace) -> None:
    with pytest.raises(SecretUnavailableError, match="not what was sealed"):
        vault.open(vault.seal(VALUE, HERE), elsewhere)


def test_no_part_of_one_row_fits_into_another(vault: Vault) -> None:
    one, two = vault.seal(VALUE, HERE), vault.seal(b"another value", HERE)
    for mixed in (SealedValue(one.key, one.wrapped, two.sealed), SealedValue(one.key, one.sealed, one.sealed)):
        with pytest.raises(SecretUnavailableError):
            vault.open(mixed, HERE)


@pytest.mark.parametrize("field", ["wrapped", "sealed"])
def test_a_changed_bit_is_seen_and_the_error_says_nothing_of_the_value(vault: Vault, field: str) -> None:
    sealed = vault.seal(VALUE, HERE)
    for position in (0, 11, 12, -1):
        bent = bytearray(getattr(sealed, field))
        bent[position] ^= 1
        with pytest.raises(SecretUnavailableError) as caught:
            vault.open(msgspec.structs.replace(sealed, **{field: bytes(bent)}), HERE)
        assert "horse" not in repr(caught.value) + str(caught.value.details)


def test_the_key_is_its_owners_alone_and_is_refused_where_others_can_read_it(vault: Vault, tmp_path: Path) -> None:
    sealed, path = vault.seal(VALUE, HERE), tmp_path / "vault.key"
    assert path.stat().st_mode & 0o777 == 0o600
    path.chmod(0o640)
    with pytest.raises(NotConfiguredError, match="by others"):
        vault.open(sealed, HERE)


def test_a_key_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_bytes(base64.b64encode(bytes(32)))
    (tmp_path / "vault.key").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(NotConfiguredError):
        FileKeys(tmp_path / "vault.key").ring()


def test_a_lost_key_is_said_and_not_replaced_by_another_that_opens_nothing(vault: Vault, tmp_path: Path) -> None:
    sealed = vault.seal(VALUE, HERE)
    (tmp_path / "vault.key").unlink()
    with pytest.raises(SecretUnavailableError, match="it needs the key") as caught:
        vault.open(sealed, HERE)
    assert sealed.key in str(caught.value)
    assert not (tmp_path / "vault.key").exists()


def test_after_a_rotation_the_old_key_opens_nothing(vault: Vault, tmp_path: Path) -> None:
    sealed = vault.seal(VALUE, HERE)
    (old,) = vault.keys.ring()
    vault.keys.begin()
    assert vault.open(sealed, HERE) == VALUE  # killed here, nothing would be lost
    fresh = vault.rewrap(sealed, HERE)
    vault.keys.finish()
    assert vault.open(fresh, HERE) == VALUE
    assert key_id(old) == sealed.key != fresh.key
    assert old not in vault.keys.ring()
    with pytest.raises(SecretUnavailableError):
        vault.open(sealed, HERE)


def test_a_command_may_print_the_keys_the_newest_first(tmp_path: Path) -> None:
    def printed(*keys: str) -> Vault:
        return Vault(open_keys(tmp_path, Config(vault_key_command=("printf", "%s\\n", *keys))))

    old, new = (base64.b64encode(os.urandom(32)).decode() for _ in range(2))
    before, after = printed(old), printed(new, old)
    sealed = before.seal(VALUE, HERE)
    assert after.open(sealed, HERE) == VALUE
    assert printed(new).open(after.rewrap(sealed, HERE), HERE) == VALUE
    assert not (tmp_path / "vault.key").exists()


@pytest.mark.parametrize("said", ["short", "AAAA", "ü", ","])
def test_a_command_that_prints_no_key_is_refused_and_not_shown(tmp_path: Path, said: str) -> None:
    with pytest.raises(NotConfiguredError, match="32 bytes in base64") as caught:
        CommandKeys(("echo", said)).ring()
    assert said == "," or said not in str(caught.value)


def test_a_command_that_fails_is_refused_without_what_it_printed() -> None:
    with pytest.raises(NotConfiguredError, match="sh gave no keys: it ended with 3") as caught:
        CommandKeys(("sh", "-c", "echo hush; exit 3")).ring()
    assert "hush" not in str(caught.value)


def test_another_file_may_hold_them(tmp_path: Path) -> None:
    config = Config(vault_key_file=str(tmp_path / "elsewhere"))
    sealed = Vault(open_keys(tmp_path, config)).seal(VALUE, HERE)
    assert Vault(open_keys(tmp_path, config)).open(sealed, HERE) == VALUE
    assert [path.name for path in tmp_path.iterdir()] == ["elsewhere"]


def test_the_desktops_keyring_may_hold_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept: dict[tuple[str, str], str] = {}
    module = ModuleType("keyring")
    module.__dict__["get_password"] = lambda service, user: kept.get((service, user))
    module.__dict__["set_password"] = lambda service, user, said: kept.__setitem__((service, user), said)
    monkeypatch.setitem(sys.modules, "keyring", module)
    keys: VaultKeys = open_keys(tmp_path, Config(vault_keyring=True))
    assert isinstance(keys, KeyringKeys)
    sealed = Vault(keys).seal(VALUE, HERE)
    assert Vault(open_keys(tmp_path, Config(vault_keyring=True))).open(sealed, HERE) == VALUE
    assert [re.fullmatch(r"[A-Za-z0-9+/]{43}=", said) is not None for said in kept.values()] == [True]


def test_a_keyring_that_is_not_installed_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "keyring", None)
    with pytest.raises(NotConfiguredError, match="isn't installed"):
        open_keys(tmp_path, Config(vault_keyring=True)).ring()
