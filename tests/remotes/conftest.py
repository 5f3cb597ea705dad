"""`trusted`: the certificate of every host here, and that this program trusts it. `host`: one with a repository."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import pytest

from tests.remotes.git_host import Host, bare_repository, certificate, serving
from tests.repositories.shelf import Shelf
from tests.results.forge import Contract


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("certificates")
    certificate(directory)
    return directory


@pytest.fixture
def trusted(certificates: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    made = certificates / "certificate.pem"
    monkeypatch.setenv("GIT_SSL_CAINFO", str(made))
    return made


@pytest.fixture
def host(tmp_path: Path, certificates: Path) -> Generator[Host]:
    tmp_path.chmod(0o755)
    bare_repository(tmp_path / "root", {"README": "one\n"})
    with serving(tmp_path / "root", Contract("gitea"), certificates) as made:
        yield made


@pytest.fixture
def shelf(tmp_path: Path) -> Generator[Shelf]:
    made = Shelf(tmp_path / "state")
    yield made
    made.close()
