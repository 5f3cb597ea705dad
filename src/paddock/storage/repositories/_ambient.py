"""What a user of this machine has told his git to prove himself with."""

from __future__ import annotations

import base64
import os
import re

from paddock.model import caller

from ._remote import SSH, Credential, Remote
from ._ssh import Login, own_login, say

_AUTHORIZATION = re.compile(r"Authorization: *(?P<scheme>Basic|Bearer) +(?P<value>\S+)", re.IGNORECASE)
_NOT_HERE = ("GIT_", "SSH_ASKPASS")


async def ambient(remote: Remote) -> Credential | Login | None:
    """Asks ssh, or the credential helpers (git-credential(1)), of the user who runs this program: his own
    configuration, and no repository's. Nobody is asked on a terminal. NotConfigured.
    """
    if remote.path is not None or remote.sends_in_the_clear:
        return None
    environment = {name: value for name, value in caller.environment().items() if not name.startswith(_NOT_HERE)}
    environment |= {"GIT_TERMINAL_PROMPT": "0", "GIT_CEILING_DIRECTORIES": "/", "GIT_DIR": os.devnull}
    if remote.scheme == SSH:
        return await own_login(remote, environment)
    quiet = ("git", "-c", "core.askPass=", "-c", "credential.interactive=false")
    asked = f"capability[]=authtype\nurl={remote.url}\n\n"
    if found := told(await say((*quiet, "credential", "fill"), environment, asked)):
        return found
    return header(await say(("git", "config", "--get-urlmatch", "http.extraHeader", remote.url), environment))


def told(text: str) -> Credential | None:
    """What `git credential fill` has answered; with an authtype since git 2.46."""
    said = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    if said.get("authtype", "").lower() == "bearer" and said.get("credential"):
        return Credential(said.get("username", ""), said["credential"], bearer=True)
    return Credential(said.get("username", ""), said["password"]) if said.get("password") else None


def header(text: str) -> Credential | None:
    """What a header, such as build servers configure, proves; another one proves nothing."""
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
