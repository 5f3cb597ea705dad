"""The credentials of a user's own git and ssh, and the part of them for the host's git."""

from __future__ import annotations

import asyncio
import base64
import os
import pwd
import re
import shlex
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from paddock.errors import NotConfiguredError
from paddock.model import caller
from paddock.storage.commands import CommandFailed, output

from ._confined import AGENT
from ._remote import SSH, Credential, Remote

_SECONDS, _MOST_BYTES = 30.0, 8 << 20


async def say(argv: Sequence[str], environment: Mapping[str, str], input: str = "") -> str:
    """Run a program and return its output, or "" if it fails or takes too long."""
    try:
        out = await output(argv, environment, seconds=_SECONDS, most_bytes=_MOST_BYTES, input=input.encode())
    except CommandFailed:
        return ""
    return out.decode(errors="replace").strip()


PROGRAM = "/usr/bin/ssh"
DIRECTORY = "/run/ssh"
_KEYS, _KEY_BYTES, _HOSTS_BYTES = 16, 64 << 10, 8 << 20
_KEPT = ("hostname", "port", "hostkeyalias", "identitiesonly")
_ADVICE = "ssh keys are named as for git: ~/.ssh/config, or GIT_SSH_COMMAND='ssh -i FILE'"

# The complete configuration of ssh. It disables programs, ports and questions to a person.
_CONFIG = """\
BatchMode yes
PreferredAuthentications publickey
StrictHostKeyChecking yes
UserKnownHostsFile {directory}/known_hosts
GlobalKnownHostsFile none
UpdateHostKeys no
CheckHostIP no
ClearAllForwardings yes
ForwardAgent no
PermitLocalCommand no
ControlPath none
RequestTTY no
ConnectTimeout 30
ServerAliveInterval 15
ServerAliveCountMax 4
LogLevel ERROR
"""


class Login(msgspec.Struct, frozen=True, kw_only=True):
    """The proof for a host over ssh, and the keys that the host must have. paddock never stores it, and no `repr` shows
    it.

    `agent` is the socket of an agent, from which paddock only requests identities and signatures. `settings` are lines
    of ssh_config(5).
    """

    user: str
    keys: tuple[str, ...] = ()
    known_hosts: str = ""
    agent: str | None = None
    settings: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return "Login(…)"

    def files(self, id: int) -> Mapping[str, str]:
        """Return all files that ssh reads, and the account that it runs as."""
        names = [f"{DIRECTORY}/key{number}" for number in range(len(self.keys))]
        lines = [f"User {self.user}", *self.settings, *(f"IdentityFile {name}" for name in names or ["none"])]
        lines.append(f"IdentityAgent {AGENT if self.agent else 'none'}")
        return {
            "/etc/passwd": f"git:x:{id}:{id}::/home:/bin/false\n",
            f"{DIRECTORY}/config": _CONFIG.format(directory=DIRECTORY) + "".join(f"{line}\n" for line in lines),
            f"{DIRECTORY}/known_hosts": self.known_hosts,
            **dict(zip(names, self.keys, strict=True)),
        }


async def own_login(remote: Remote, environment: Mapping[str, str]) -> Login:
    """Ask the user's ssh for its configuration of that host (`ssh -G`).

    GIT_SSH_COMMAND or core.sshCommand counts as far as it is `ssh` with options. Raises NotConfiguredError.
    """
    command = caller.environment().get("GIT_SSH_COMMAND") or await say(
        ("git", "config", "core.sshCommand"), environment
    )
    login = ("-l", remote.user) if remote.user else ()
    port = ("-p", str(remote.port)) if remote.port else ()
    command_line = (*_options(command), *login, *port, "-G", "--", remote.host)
    settings = _settings(await say(command_line, environment))
    if "hostname" not in settings:
        raise NotConfiguredError(f"ssh cannot say how to reach {remote.host}", hint=shlex.join(command_line))
    for name in ("proxycommand", "proxyjump"):
        if settings.get(name, ["none"]) != ["none"]:
            raise NotConfiguredError(
                f"{remote.host} is reached by a {name}, which is not used for repositories", hint=_ADVICE
            )
    return await asyncio.to_thread(_login, settings)


def _login(settings: Mapping[str, Sequence[str]]) -> Login:
    agent = settings.get("identityagent", ("SSH_AUTH_SOCK",))[0]
    agent = caller.environment().get("SSH_AUTH_SOCK", "") if agent == "SSH_AUTH_SOCK" else _path(agent)
    hosts = " ".join((*settings.get("userknownhostsfile", ()), *settings.get("globalknownhostsfile", ())))
    return Login(
        user=settings["user"][0],
        keys=tuple(filter(None, (_key(_path(name)) for name in settings.get("identityfile", ())[:_KEYS]))),
        known_hosts="".join(_text(_path(name), _HOSTS_BYTES) for name in hosts.split()),
        agent=agent if os.path.exists(agent) else None,
        settings=tuple(f"{name} {settings[name][0]}" for name in _KEPT if name in settings),
    )


def _options(command: str) -> Sequence[str]:
    if not os.path.exists(PROGRAM):
        raise NotConfiguredError(
            "what is behind ssh needs it on this machine, in /usr", hint="apt install openssh-client"
        )
    try:
        words = shlex.split(command) or ["ssh"]
    except ValueError:
        words = [command]
    if os.path.basename(words[0]) != "ssh" or not shutil.which(words[0]):
        raise NotConfiguredError(f"git is told to reach hosts by {words[0][:100]!r}, which is not ssh", hint=_ADVICE)
    return words


def _settings(text: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        name, _, value = line.partition(" ")
        found.setdefault(name, []).append(value)
    return found


def _path(name: str) -> str:
    """Expand `~` like ssh: to the home of the account, even with another HOME."""
    return pwd.getpwuid(os.getuid()).pw_dir + name[1:] if name.startswith("~/") else name


def _key(path: str) -> str:
    text = _text(path, _KEY_BYTES)
    return text if "PRIVATE KEY" in text or text.startswith(("ssh-", "ecdsa-", "sk-")) else ""


def _text(path: str, most: int) -> str:
    try:
        text = Path(path).read_bytes()[:most].decode()
    except (OSError, UnicodeDecodeError):
        return ""
    return text if text.endswith("\n") or not text else f"{text}\n"


_AUTHORIZATION = re.compile(r"Authorization: *(?P<scheme>Basic|Bearer) +(?P<value>\S+)", re.IGNORECASE)
_NOT_HERE = ("GIT_", "SSH_ASKPASS")


async def ambient(remote: Remote) -> Credential | Login | None:
    """Ask the user's ssh or credential helpers (git-credential(1)) for a credential.

    Only the user's own configuration counts, no repository's. No question appears on a terminal. NotConfigured.
    """
    if remote.path is not None or remote.sends_in_the_clear:
        return None
    environment = {name: value for name, value in caller.environment().items() if not name.startswith(_NOT_HERE)}
    environment |= {"GIT_TERMINAL_PROMPT": "0", "GIT_CEILING_DIRECTORIES": "/", "GIT_DIR": os.devnull}
    if remote.scheme == SSH:
        return await own_login(remote, environment)
    quiet = ("git", "-c", "core.askPass=", "-c", "credential.interactive=false")
    request = f"capability[]=authtype\nurl={remote.url}\n\n"
    if found := parse_fill(await say((*quiet, "credential", "fill"), environment, request)):
        return found
    return header(await say(("git", "config", "--get-urlmatch", "http.extraHeader", remote.url), environment))


def parse_fill(text: str) -> Credential | None:
    """Parse the answer of `git credential fill`, which has an authtype since git 2.46."""
    fields = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    if fields.get("authtype", "").lower() == "bearer" and fields.get("credential"):
        return Credential(fields.get("username", ""), fields["credential"], bearer=True)
    return Credential(fields.get("username", ""), fields["password"]) if fields.get("password") else None


def header(text: str) -> Credential | None:
    """Return the credential in a header that build servers configure. Other headers hold none."""
    match = _AUTHORIZATION.fullmatch(text.strip())
    if match is None:
        return None
    if match["scheme"].lower() != "basic":
        return Credential("", match["value"], bearer=True)
    try:
        username, colon, password = base64.b64decode(match["value"], validate=True).decode().partition(":")
    except ValueError:
        return None
    return Credential(username, password) if colon else None
