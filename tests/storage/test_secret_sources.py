"""Each source gives its value, or says which source it is and why it has none, and never the value."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from secret_servers import PEM, VAULT_TOKEN, github, served, vault

from paddock.errors import SecretUnavailableError
from paddock.model import GitHubApp, SecretSource, SecretValue
from paddock.storage.secrets import FetchedValue, Fetcher
from paddock.storage.secrets._sources import SourceRefused, from_command
from tests import orphans

VALUE = "correct-horse-battery-staple"


def fetch(source: SecretSource, environment: Mapping[str, str] = {}, now: float | None = None) -> FetchedValue:
    def stored(name: str) -> SecretValue:
        if name != "KEPT":
            raise SecretUnavailableError(f"secret {name} has no value: nobody has set it")
        return SecretValue(VALUE.encode())

    fetcher = Fetcher(environment, stored, time.time if now is None else lambda: now)
    return asyncio.run(fetcher.fetch("TOKEN", source))


def refused(source: SecretSource, environment: Mapping[str, str] = {}, now: float | None = None) -> str:
    with pytest.raises(SecretUnavailableError) as caught:
        fetch(source, environment, now)
    assert VALUE not in f"{caught.value} {caught.value.details} {caught.value.__cause__}"
    assert caught.value.details["secret"] == "TOKEN"
    return str(caught.value)


def test_a_variable_of_the_service(tmp_path: Path) -> None:
    assert fetch(SecretSource(env="CI_TOKEN"), {"CI_TOKEN": VALUE}).value.data == VALUE.encode()
    assert "there was no variable CI_TOKEN" in refused(SecretSource(env="CI_TOKEN"))
    assert "has 6 bytes" in refused(SecretSource(env="CI_TOKEN"), {"CI_TOKEN": "sesame"})


def test_one_of_the_store() -> None:
    assert fetch(SecretSource(stored="KEPT")).value.data == VALUE.encode()
    with pytest.raises(SecretUnavailableError, match="nobody has set it"):
        fetch(SecretSource(stored="OTHER"))


def test_a_file_without_its_last_newline(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text(VALUE + "\n")
    assert fetch(SecretSource(file=str(path))).value.data == VALUE.encode()
    path.write_bytes(b"x" * 65_540)
    assert "more than 65536 bytes" in refused(SecretSource(file=str(path)))
    assert "No such file" in refused(SecretSource(file=str(tmp_path / "none")))
    assert "not an absolute path" in refused(SecretSource(file="token"))
    os.mkfifo(tmp_path / "pipe")
    assert "not a regular file" in refused(SecretSource(file=str(tmp_path / "pipe")))


def test_what_a_command_prints() -> None:
    assert fetch(SecretSource(command=("printf", "%s\\n", VALUE))).value.data == VALUE.encode()
    own = fetch(SecretSource(command=("sh", "-c", "echo $OF_THE_MAKER")), {"OF_THE_MAKER": VALUE})
    assert own.value.data == VALUE.encode()
    assert "sh ended with 3" in refused(SecretSource(command=("sh", "-c", f"echo {VALUE}; echo {VALUE} >&2; exit 3")))
    assert "cannot be started" in refused(SecretSource(command=("/no/such",)))
    assert "more than 65536 bytes" in refused(SecretSource(command=("cat", "/dev/zero")))


def test_a_command_that_is_not_waited_for_any_more_is_ended_with_what_it_started(tmp_path: Path) -> None:
    path = tmp_path / "pid"

    async def give_up() -> None:
        task = asyncio.ensure_future(
            from_command(("sh", "-c", f"sleep 600 & echo $! > {path}.new; mv {path}.new {path}; wait"), os.environ)
        )
        assert await asyncio.to_thread(orphans.wait_until, path.exists)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(give_up())
    assert orphans.wait_until(lambda: not Path(f"/proc/{path.read_text().strip()}/exe").exists())


def test_a_command_that_does_not_end_in_time_is_refused() -> None:
    with pytest.raises(SourceRefused, match="sleep did not end within 0 s"):
        asyncio.run(from_command(("sleep", "600"), os.environ, seconds=0.0))


def test_a_field_of_a_vault() -> None:
    with served(vault({"ci": {"token": VALUE, "number": 5}})) as address:
        there = {"VAULT_ADDR": address, "VAULT_TOKEN": VAULT_TOKEN}
        assert fetch(SecretSource(vault="secret/data/ci#token"), there).value.data == VALUE.encode()
        assert "has no text 'other'" in refused(SecretSource(vault="secret/data/ci#other"), there)
        assert "has no text 'number'" in refused(SecretSource(vault="secret/data/ci#number"), there)
        for path in ("none", "gone"):
            assert "there is nothing at that path" in refused(SecretSource(vault=f"secret/data/{path}#token"), there)
        said = refused(SecretSource(vault="secret/data/ci#token"), there | {"VAULT_TOKEN": "hvs.wrong-one"})
        assert "the token may not read it (403)" in said
        assert "hvs.wrong-one" not in said


def test_the_token_of_a_vault_may_be_where_its_own_program_puts_it(tmp_path: Path) -> None:
    (tmp_path / ".vault-token").write_text(VAULT_TOKEN)
    with served(vault({"ci": {"token": VALUE}})) as address:
        source = SecretSource(vault="secret/data/ci#token")
        assert fetch(source, {"VAULT_ADDR": address, "HOME": str(tmp_path)}).value.data == VALUE.encode()
        assert "vault login" in refused(source, {"VAULT_ADDR": address, "HOME": "/nowhere"})


@pytest.mark.parametrize("path", ["secret/data/ci", "#token", "secret/../sys/x#token", "secret//x#token", "x#"])
def test_a_path_of_a_vault_that_is_none_is_refused_before_anybody_is_asked(path: str) -> None:
    there = {"VAULT_ADDR": "http://127.0.0.1:1", "VAULT_TOKEN": VAULT_TOKEN}
    assert "is not of the form" in refused(SecretSource(vault=path), there)


def test_a_vault_is_asked_encrypted_and_nobody_else_is_where_it_points_elsewhere() -> None:
    source = SecretSource(vault="secret/data/ci#token")
    plain = {"VAULT_ADDR": "http://vault.example:8200", "VAULT_TOKEN": VAULT_TOKEN}
    assert "neither https nor on this machine" in refused(source, plain)
    asked: list[str] = []

    def elsewhere(method: str, path: str, headers: Any, body: bytes) -> tuple[int, object]:
        asked.append(path)
        return 307, {}

    with served(elsewhere) as address:
        assert "(307)" in refused(source, {"VAULT_ADDR": address, "VAULT_TOKEN": VAULT_TOKEN})
    assert len(asked) == 1
    with served(lambda *_: (200, b"x" * (2 << 20))) as address:
        assert "more than 1 MiB" in refused(source, {"VAULT_ADDR": address, "VAULT_TOKEN": VAULT_TOKEN})


def app(address: str, key: SecretSource, **changes: Any) -> SecretSource:
    said: dict[str, Any] = {"app_id": "12", "installation_id": 34, "private_key": key, "api": address}
    return SecretSource(github_app=GitHubApp(**(said | changes)))


def test_a_token_of_an_hour_for_what_was_asked(tmp_path: Path) -> None:
    made: list[Any] = []
    key = SecretSource(file=str(tmp_path / "app.pem"))
    (tmp_path / "app.pem").write_bytes(PEM)
    now = 1_800_000_000.0
    with served(github(lambda: now, made)) as address:
        source = app(address, key, repositories=("one",), permissions={"contents": "read"})
        found = fetch(source, now=now)
        assert found.value.data == b"ghs_" + b"1".rjust(36, b"0")
        assert found.seconds == 3600.0
        assert made == [{"repositories": ["one"], "permissions": {"contents": "read"}}]
        assert fetch(source, now=now).value != found.value  # each sandbox has its own
        assert "(422)" in refused(app(address, key, repositories=("other",)), now=now)
        assert "(404)" in refused(app(address, key, installation_id=35), now=now)
        assert "(401)" in refused(app(address, key, app_id="13"), now=now)
        assert "(401)" in refused(source, now=now - 7200)


def test_a_key_that_is_none_is_said_without_being_shown(tmp_path: Path) -> None:
    path = tmp_path / "app.pem"
    other = ec.generate_private_key(ec.SECP256R1()).private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    for content in (VALUE.encode(), other):
        path.write_bytes(content)
        assert "not an RSA key in PEM" in refused(app("http://127.0.0.1:1", SecretSource(file=str(path))))


def test_no_source_is_said() -> None:
    assert "no source is given" in refused(SecretSource())
