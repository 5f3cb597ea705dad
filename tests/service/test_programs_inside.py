"""What programs expect of the template `host`: python, pip's programs on PATH, users that root makes and becomes."""

from __future__ import annotations

import shutil

import pytest

from tests.conftest import SandboxFactory


@pytest.mark.skipif(shutil.which("python3", path="/usr/bin") is None, reason="this machine has no /usr/bin/python3")
def test_python_has_its_short_name_and_what_pip_installs_is_found(sandbox: SandboxFactory) -> None:
    script = (
        "python -c 'import sys; print(sys.executable)' && mkdir -p ~/.local/bin"
        " && printf '#!/bin/sh\\necho mine' > ~/.local/bin/mine && chmod +x ~/.local/bin/mine && mine"
        " && python -m pip config debug >/dev/null && echo $PIP_BREAK_SYSTEM_PACKAGES"
    )
    result = sandbox().exec(script, check=True)
    python, *rest = result.stdout.splitlines()
    assert python.startswith(("/usr/bin/python", "/usr/local/bin/python"))
    assert rest == ["mine", "1"]


@pytest.mark.root
@pytest.mark.skipif(shutil.which("adduser", path="/usr/sbin") is None, reason="this machine has no adduser")
def test_root_inside_adds_users_and_becomes_them(sandbox: SandboxFactory) -> None:
    inside = sandbox()
    inside.exec("adduser --disabled-password --gecos '' joe", user="root", check=True)
    assert inside.exec("su joe -c 'id -un; ls -d ~'", user="root", check=True).stdout == "joe\n/home/joe\n"
    refused = inside.exec("su root -c id")
    assert refused.exit_code != 0, "who isn't root becomes nobody"
    assert "uid=0" not in refused.stdout
