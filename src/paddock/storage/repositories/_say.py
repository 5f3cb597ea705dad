"""A program of the user who runs this one, asked what he has configured."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

_SECONDS = 30.0


async def say(argv: Sequence[str], environment: Mapping[str, str], input: str = "") -> str:
    """What it prints; nothing, if it fails or takes long. It starts in /: no workspace is there to be believed."""
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
    return out.decode(errors="replace").strip() if process.returncode == 0 else ""
