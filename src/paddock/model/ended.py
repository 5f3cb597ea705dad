"""Say how a sandbox has ended, in an error."""

from __future__ import annotations

from paddock.errors import SandboxDiedError

from .sandbox import Limit, State

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .sandbox import Sandbox


def died(sandbox: Sandbox) -> SandboxDiedError:
    """Return the error that says when and why the sandbox ended, and what to do."""
    spec, limit = sandbox.spec, sandbox.limit
    hint = f"create another one; paddock why {sandbox.id}"
    if spec.workspace is not None:
        hint = f"its workspace lives on: paddock up --task {spec.name or spec.workspace}"
    elif limit is Limit.TTL:
        hint = f"create it with a longer ttl than {spec.ttl_seconds:g} s, or extend it in time"
    elif limit is Limit.RETENTION:
        hint = "set a longer paused_retention_days in config.toml: paddock doctor shows its path"
    named = f" ({spec.name})" if spec.name else ""
    when = f" at {sandbox.ended:%Y-%m-%d %H:%M:%S} UTC" if sandbox.ended else ""
    exceeded = f" ({limit.value} limit)" if limit and limit not in (Limit.TTL, Limit.RETENTION) else ""
    ended, why = "failed" if sandbox.state is State.FAILED else "ended", sandbox.reason or "no reason is known"
    return SandboxDiedError(
        f"sandbox {sandbox.id}{named} {ended}{when}: {why}{exceeded}",
        hint=hint,
        sandbox=sandbox.id,
        state=sandbox.state.value,
        ended_at=sandbox.ended_at,
        limit=limit and limit.value,
        reason=sandbox.reason,
    )
