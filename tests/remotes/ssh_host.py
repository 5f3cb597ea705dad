"""A real sshd over repositories, and what its users have: a key in a file, an agent, the hosts that they know."""

from __future__ import annotations

import getpass
import os
import shutil
import socket
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from tests.repositories.git_servers import ENVIRONMENT, Origin

SSHD = shutil.which("sshd", path="/usr/sbin:/usr/local/sbin:/sbin")
_CONFIG = """\
ListenAddress 127.0.0.1:{port}
HostKey {directory}/host_key
AuthorizedKeysFile {directory}/authorized_keys
PidFile none
StrictModes no
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
AllowAgentForwarding no
"""


class SshHost:
    """`known` is what goes into a file of known hosts."""

    def __init__(self, directory: Path, port: int) -> None:
        self.directory, self.port = directory, port
        self.repository = Origin(directory / "root" / "app")
        self.repository.commit({"README": "one\n"})
        self.repository.git("config", "receive.denyCurrentBranch", "ignore")
        make_key(directory / "host_key")
        self.admit()

    @property
    def url(self) -> str:
        return f"ssh://{getpass.getuser()}@127.0.0.1:{self.port}{self.repository.path}"

    @property
    def known(self) -> str:
        kind, key, *_ = (self.directory / "host_key.pub").read_text().split()
        return f"[127.0.0.1]:{self.port} {kind} {key}\n"

    def admit(self, *keys: Path) -> None:
        """These and no others."""
        path = self.directory / "authorized_keys"
        path.write_text("".join(key.with_name(f"{key.name}.pub").read_text() for key in keys))


def make_key(path: Path) -> Path:
    argv = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(path)]
    subprocess.run(argv, check=True, stdin=subprocess.DEVNULL)
    return path


@contextmanager
def serving(directory: Path) -> Generator[SshHost]:
    """Its own sshd each: whoever logs in is the one who runs this."""
    assert SSHD is not None
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # it insists
    with socket.socket() as held:
        # Nobody else is given it before sshd listens there; who listens may share it with who does not.
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
        host = SshHost(directory, port)
        (directory / "sshd_config").write_text(_CONFIG.format(port=port, directory=directory))
        argv = [SSHD, "-D", "-e", "-f", str(directory / "sshd_config")]
        environment = {k: v for k, v in ENVIRONMENT.items() if k.startswith("PATH")}
        with subprocess.Popen(argv, env=environment, stderr=subprocess.PIPE, text=True) as process:
            try:
                assert process.stderr is not None
                said = process.stderr.readline()
                assert "listening" in said, said
                yield host
            finally:
                process.terminate()
                process.communicate()


@contextmanager
def agent(directory: Path, *keys: Path) -> Generator[Path]:
    """The socket of one that holds these."""
    path = directory / "a"
    with subprocess.Popen(["ssh-agent", "-D", "-a", str(path)], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            for key in keys:
                environment = {"SSH_AUTH_SOCK": str(path), "PATH": "/usr/bin:/bin"}
                subprocess.run(["ssh-add", "-q", str(key)], env=environment, check=True, stdin=subprocess.DEVNULL)
            yield path
        finally:
            process.terminate()
            process.communicate()
