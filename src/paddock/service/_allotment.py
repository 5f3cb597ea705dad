"""What sandboxes may have that a program inside another one makes: no more than that one, and no longer."""

from __future__ import annotations

from paddock.errors import InvalidArgument, InvalidState, ResourceExhausted, SandboxDied
from paddock.model import Limits, Principal, SandboxSpec, nested_principal, replace

from ._context import Component
from ._remains import died
from ._store import Row, has_ended

_SHARED = ("cpus", "memory_mib", "swap_mib", "processes", "disk_mib", "inodes", "tmp_mib")


class Allotment(Component):
    """`nested=N` cuts what a sandbox may have into N equal parts, which N children may have beside it."""

    def outer(self, principal: Principal) -> Row | None:
        """The sandbox inside which it is asked, if that is so. SandboxDied."""
        if principal.sandbox is None:
            return None
        row = self._store.get(principal.sandbox)
        if row is None:
            raise SandboxDied(f"sandbox {principal.sandbox} is gone")
        if has_ended(row):
            raise died(row.sandbox)
        return row

    def of_fork(self, outer: Row, spec: SandboxSpec, count: int) -> SandboxSpec:
        """That of a fork. It begins with as much on its disk as the outer one has, so it may hold as much."""
        of = outer.sandbox.spec
        limits = replace(share(of), disk_mib=of.limits.disk_mib, inodes=of.limits.inodes)
        ttl = min(spec.ttl_seconds, self.seconds_left(outer))
        spec = replace(spec, limits=limits, ttl_seconds=ttl, nested=0, persistent=False)
        self.check(outer, spec, count, forked=True)
        return spec

    def seconds_left(self, outer: Row) -> float:
        return max(1.0, outer.deadline - self._clock.boottime())

    def check(self, outer: Row, spec: SandboxSpec, count: int, *, forked: bool = False) -> None:
        """InvalidArgument, InvalidState, ResourceExhausted: no child like that, or none now. The caller records the
        children before anything else runs."""
        most = outer.sandbox.spec.nested
        if not most:
            raise InvalidState(
                f"sandbox {outer.id} may have no children", hint="make it with nested=N", sandbox=outer.id
            )
        part = share(outer.sandbox.spec)
        for name in _SHARED:
            if forked and name in ("disk_mib", "inodes"):
                continue
            if getattr(spec.limits, name) > getattr(part, name):
                raise InvalidArgument(
                    f"limits.{name}={getattr(spec.limits, name):.10g} is above {getattr(part, name):.10g}:"
                    f" each of {most} children may have one part in {most} of what {outer.id} has",
                    hint="ask for less, or make the outer sandbox with more, or for fewer children",
                    field=f"limits.{name}",
                )
        if spec.ttl_seconds > self.seconds_left(outer) + 1.0:
            raise InvalidArgument(
                f"ttl_seconds={spec.ttl_seconds:.10g} is longer than {outer.id} lives", field="ttl_seconds"
            )
        living = len(self._store.list(nested_principal(outer.id).id))
        if living + count > most:
            raise ResourceExhausted(
                f"sandbox {outer.id} has {living} children, and may have {most}", hint="kill one that is not needed"
            )


def share(spec: SandboxSpec) -> Limits:
    """What each of its children may have."""
    of, parts = spec.limits, max(1, spec.nested)
    parted = {name: getattr(of, name) // parts for name in _SHARED}
    return replace(of, **{**parted, "cpus": of.cpus / parts, "tmp_mib": max(1, parted["tmp_mib"])})
