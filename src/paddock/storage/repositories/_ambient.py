"""What a user of this machine has told his git to prove himself with."""

from __future__ import annotations

import asyncio
import os

from ._remote import Credential, Remote

_SECONDS = 30.0
_NOT_HERE = ("GIT_", "SSH_ASKPASS")


async def ambient(remote: Remote) -> Credential | None:
    """Asks the credential helpers of the user who runs this program (git-credential(1)): his own configuration, and no
    repository's. Nobody is asked on a terminal.
    """
    if remote.path is not None or remote.sends_in_the_clear:
        return None
    environment = {name: value for name, value in os.environ.items() if not name.startswith(_NOT_HERE)}
    try:
        process = await asyncio.create_subprocess_exec(
            *("git", "-c", "core.askPass=", "-c", "credential.interactive=false", "credential", "fill"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            cwd="/",
            env={**environment, "GIT_TERMINAL_PROMPT": "0", "GIT_CEILING_DIRECTORIES": "/", "GIT_DIR": os.devnull},
            start_new_session=True,
        )
    except FileNotFoundError:
        return None
    try:
        async with asyncio.timeout(_SECONDS):
            out, _ = await process.communicate(f"url={remote.url}\n\n".encode())
    except TimeoutError:
        return None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    said = dict(line.split("=", 1) for line in out.decode(errors="replace").splitlines() if "=" in line)
    if process.returncode != 0 or not said.get("password"):
        return None
    return Credential(said.get("username", ""), said["password"])
