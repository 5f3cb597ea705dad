"""Secrets behind the door: one's own, and their values nowhere but sealed."""

from __future__ import annotations

import msgspec
import pytest
from service_world import ME, Rig

from paddock.audit import describe
from paddock.errors import (
    InvalidArgumentError,
    NotConfiguredError,
    NotFoundError,
    PolicyDeniedError,
    SecretUnavailableError,
)
from paddock.model import (
    ListSecrets,
    Principal,
    RemoveSecret,
    RotateVaultKey,
    SecretValue,
    SetSecret,
    nested_principal,
)
from paddock.model.config import Config
from paddock.policy import Policy

VALUE = "correct-horse-battery-staple"
OTHER = Principal("local:99999")
EVERYBODY = Policy({"everybody": lambda _, __: (True, "a test")})


def setting(name: str = "TOKEN", value: str = VALUE) -> SetSecret:
    return SetSecret(name=name, value=SecretValue(value.encode()))


async def test_a_secret_is_listed_without_its_value_and_counts_its_versions(rig: Rig) -> None:
    async with rig.service() as service:
        assert (await service.perform(setting(), ME)).version == 1
        assert (await service.perform(setting(value="another-value"), ME)).version == 2
        await service.perform(setting("ANOTHER"), ME)
        found = await service.perform(ListSecrets(), ME)
        assert [(one.name, one.version) for one in found] == [("ANOTHER", 1), ("TOKEN", 2)]
        assert VALUE.encode() not in msgspec.json.encode(found)
        assert service.secrets.value(ME.id, "TOKEN").data == b"another-value"


async def test_no_file_of_the_state_directory_holds_the_value_or_its_digest(rig: Rig) -> None:
    import base64
    import hashlib

    async with rig.service() as service:
        await service.perform(setting(), ME)
        assert service.secrets.value(ME.id, "TOKEN").data == VALUE.encode()
        await service.perform(RotateVaultKey(), ME)
    forms = (VALUE.encode(), base64.b64encode(VALUE.encode()), hashlib.sha256(VALUE.encode()).hexdigest().encode())
    files = [path for path in rig.state_dir.rglob("*") if path.is_file()]
    assert {"paddock.db", "vault.key"} < {path.name for path in files}
    assert [path for path in files if any(form in path.read_bytes() for form in forms)] == []


async def test_nobody_sees_or_uses_or_removes_the_secrets_of_another(rig: Rig) -> None:
    async with rig.service(policy=EVERYBODY) as service:
        await service.perform(setting(), ME)
        assert await service.perform(ListSecrets(), OTHER) == ()
        with pytest.raises(NotFoundError):
            await service.perform(RemoveSecret(name="TOKEN"), OTHER)
        with pytest.raises(SecretUnavailableError):
            service.secrets.value(OTHER.id, "TOKEN")


async def test_nothing_about_secrets_can_be_asked_from_inside_a_sandbox(rig: Rig) -> None:
    async with rig.service() as service:
        await service.perform(setting(), ME)
        for action in (setting(), RemoveSecret(name="TOKEN"), ListSecrets(), RotateVaultKey()):
            with pytest.raises(PolicyDeniedError):
                await service.perform(action, nested_principal("sb_1"))


async def test_a_removed_secret_has_no_value_any_more(rig: Rig) -> None:
    async with rig.service() as service:
        await service.perform(setting(), ME)
        await service.perform(RemoveSecret(name="TOKEN"), ME)
        with pytest.raises(SecretUnavailableError, match="nobody has set it"):
            service.secrets.value(ME.id, "TOKEN")
        with pytest.raises(NotFoundError):
            await service.perform(RemoveSecret(name="TOKEN"), ME)


async def test_a_second_service_reads_what_the_first_has_sealed_also_after_a_new_key(rig: Rig) -> None:
    async with rig.service() as service:
        await service.perform(setting(), ME)
        (before,) = await service.perform(ListSecrets(), ME)
        assert await service.perform(RotateVaultKey(), ME) == 1
        (after,) = await service.perform(ListSecrets(), ME)
        assert before.key != after.key
        assert service.secrets.value(ME.id, "TOKEN").data == VALUE.encode()


@pytest.mark.parametrize("value", ["", "sesame", "1234567", "x" * 65_537])
async def test_a_value_that_cannot_be_told_from_text_is_refused_without_being_shown(rig: Rig, value: str) -> None:
    async with rig.service() as service:
        with pytest.raises(InvalidArgumentError) as caught:
            await service.perform(setting(value=value), ME)
        assert not value or value not in str(caught.value)


@pytest.mark.parametrize("name", ["", "1TOKEN", "A-B", "A B", "ä", "A" * 129, "A\n"])
async def test_a_secret_is_named_as_a_variable_is(rig: Rig, name: str) -> None:
    async with rig.service() as service:
        with pytest.raises(InvalidArgumentError):
            await service.perform(setting(name), ME)


async def test_a_command_that_prints_no_keys_is_told_at_the_start_and_not_to_a_request(rig: Rig) -> None:
    with pytest.raises(NotConfiguredError, match="vault_key_command: false gave no keys: it ended with 1"):
        async with rig.service(sweeps=True, config=Config(vault_key_command=("false",))):
            pass


def test_neither_words_nor_records_show_a_value() -> None:
    action = setting()
    assert describe(action) == {"name": "TOKEN", "value": "[redacted]"}
    assert VALUE not in f"{action!r} {action.value} {action.value.__rich_repr__()}"
