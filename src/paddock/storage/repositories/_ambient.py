"""What a user of this machine has told his git to prove himself with."""

from __future__ import annotations

import asyncio
import base64
import os
import re
from collections.abc import Mapping, Sequence

from ._remote import Credential, Remote

_SECONDS = 30.0
_AUTHORIZATION = re.compile(r"Authorization: *(?P<scheme>Basic|Bearer) +(?P<value>\S+)", re.IGNORECASE)
_NOT_HERE = ("GIT_", "SSH_ASKPASS")


async def ambient(remote: Remote) -> Credential | None:
    """Asks the credential helpers of the user who runs this program (git-credential(1)): his own configuration, and no
    repository's. Nobody is asked on a terminal.
    """
    if remote.path is not None or remote.sends_in_the_clear:
        return None
    environment = {name: value for name, value in os.environ.items() if not name.startswith(_NOT_HERE)}
    environment |= {"GIT_TERMINAL_PROMPT": "0", "GIT_CEILING_DIRECTORIES": "/", "GIT_DIR": os.devnull}
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


async def say(argv: Sequence[str], environment: Mapping[str, str], input: str = "") -> str:
    """What a program of the user prints; nothing, if it fails or takes long."""
    try:
        process = await asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            cwd="/",
            env=environment,
            start_new_session=True,
        )
    except FileNotFoundError:
        return ""
    try:
        async with asyncio.timeout(_SECONDS):
            out, _ = await process.communicate(input.encode())
    except TimeoutError:
        return ""
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return out.decode(errors="replace") if process.returncode == 0 else ""
