"""Pushes a branch, or opens a pull request, with the credentials of the calling user.

A client starts it as a separate program. It ends with the client, and so does its git.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from paddock.errors import InvalidStateError, PolicyDeniedError
from paddock.model import Published, PullRequest, PullRequestPlan, PushPlan, codec
from paddock.supervisor.layout import REPOSITORIES

from . import Credential, HostGit, RemoteRefused, ambient, parse, web
from .forges import Forge, open_forge


def main(state_dir: str, plan: str) -> None:
    """Carry out the plan, a `codec.Handle`, and print the result, a `Published`."""
    try:
        published = asyncio.run(_carry_out(Path(state_dir), codec.decode(plan.encode(), codec.Handle)))
    except Exception as error:
        published = Published(error=codec.encode_error(error).decode())
    sys.stdout.buffer.write(codec.encode(published))
    sys.stdout.buffer.flush()
    os._exit(0)


async def _carry_out(state_dir: Path, plan: codec.Handle) -> Published:
    asyncio.get_running_loop().add_reader(sys.stdin.fileno(), os._exit, 1)
    if plan.push is not None:
        await _push(HostGit(state_dir / REPOSITORIES), plan.push)
    if plan.pull_request is None:
        return Published()
    return Published(pull_request=await _open(plan.pull_request))


async def _push(git: HostGit, plan: PushPlan) -> None:
    """Push a branch. PolicyDeniedError: the remote refuses. InvalidStateError: the remote has changed meanwhile."""
    remote, _ = parse(plan.url, local=True)
    credential = await ambient(remote)
    try:
        await git.push(
            plan.repository,
            remote,
            credential,
            commit=plan.commit,
            ref=plan.ref,
            expect=plan.expect,
            lender=plan.lender,
        )
    except RemoteRefused as refused:
        raise PolicyDeniedError(f"{remote.url} doesn't let this user push: {refused}", rule="remote") from None


async def _open(plan: PullRequestPlan) -> PullRequest:
    remote, _ = parse(web(plan.url), local=True)
    login = await ambient(remote)
    forge = await open_forge(remote, login if isinstance(login, Credential) else None, plan.forge)
    return await _ensure(forge, plan.base or await forge.default_branch(), plan)


async def _ensure(forge: Forge, base: str, plan: PullRequestPlan) -> PullRequest:
    found = await forge.find(plan.branch, base)
    if found is not None:
        return found
    try:
        return await forge.create(plan.branch, base, title=plan.title, body=plan.body, draft=plan.draft)
    except InvalidStateError:
        found = await forge.find(plan.branch, base)  # another caller was quicker
        if found is None:
            raise
        return found
