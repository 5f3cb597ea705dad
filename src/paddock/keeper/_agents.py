"""Agents: the processes inside a sandbox that start commands, one per identity.

They live in an inner user namespace, so that root among the commands has no power over pid 1, over the mounts or
over the network; and they put on the filters first, so that whatever they start by vfork is born with them.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import socket
from collections.abc import Mapping

from paddock.keeper import _guest_program as guest_program
from paddock.keeper import _shares
from paddock.keeper._plan import JAIL, JailPlan, User
from paddock.keeper._trace import Steps, report_failure
from paddock.keeper.layout import ORDINARY_ID
from paddock.linux import (
    caps,
    landlock,
    namespaces,
    prctl,
    rlimits,
    seccomp,
    seccomp_profile,
    subordinate_ids,
)
from paddock.linux.namespaces import IdMap

_LARGEST_MESSAGE = 1 << 18
_FOR_ALL = rlimits.ResourceLimits(core_bytes=0, locked_bytes=8 << 20)
# Of these, root inside has the part that concerns files and processes of the sandbox's own ids.
_ROOT_CAPABILITIES = (
    caps.CHOWN,
    caps.DAC_OVERRIDE,
    caps.FOWNER,
    caps.FSETID,
    caps.KILL,
    caps.SETGID,
    caps.SETUID,
    caps.SETFCAP,
)


class Agents:
    """Starts agents for pid 1. The first one brings the inner user namespace into being; later ones enter it.

    They become `program`, a descriptor of the native guest. `proc` is a descriptor of a mount of /proc that can be
    written, which no command ever sees. From `sync` the first agent takes its plan, and there it tells the keeper that
    its filters are on.
    """

    def __init__(
        self,
        sync: socket.socket,
        *,
        program: int,
        root_mode: bool,
        whole: bool,
        held: frozenset[str],
        filter: seccomp.Filter,
        landlock_abi: int,
        proc: int,
        listeners: Mapping[str, socket.socket],
        steps: Steps,
    ) -> None:
        self.listeners = listeners
        self.plan: JailPlan | None = None
        self.first = 0
        self._sync = sync
        self._program = program
        self._root_mode = root_mode
        self._whole = whole
        self._held = held
        self._filter = filter
        self._landlock_abi = landlock_abi
        self._proc = proc
        self._steps = steps
        self._inner = -1

    def descriptors(self) -> tuple[int, ...]:
        """What pid 1 keeps open for this."""
        return (self._program, self._proc, self._inner)

    def conceive(self) -> None:
        """Makes the first agent, which waits for its plan, and the namespace of all. OSError."""
        rlimits.apply(_FOR_ALL)
        mapped, tell = os.pipe()
        with contextlib.nullcontext() if self._root_mode else _shares.bounding_resources():
            pid = namespaces.clone(namespaces.NEWUSER)
        if pid == 0:
            try:
                os.close(tell)
                if os.read(mapped, 1):
                    os.close(mapped)
                    self._wait_for_plan()
            except Exception as error:
                self._report(error)
            finally:
                os._exit(1)
        os.close(mapped)
        try:
            self._write_maps(pid)
            self._inner = os.open(b"%d/ns/user" % pid, os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._proc)
            os.write(tell, b"1")
        finally:
            os.close(tell)
        self.first = pid

    def start(self, identity: str) -> int:
        """Starts the agent `identity` ("user" or "root") and returns its pid. OSError."""
        assert self.plan is not None
        if self.first and identity == "user":
            pid, self.first = self.first, 0
            return pid
        pid = namespaces.clone(0)
        if pid == 0:
            try:
                oom_score = self._open_oom_score()
                namespaces.setns(self._inner, namespaces.NEWUSER)
                self._become(identity, self.plan)
                landlock.restrict(self._landlock_abi)
                self._filter.install()
                guest_program.become(self._program, self.listeners[identity].fileno(), oom_score)
            finally:
                os._exit(1)
        return pid

    def _wait_for_plan(self) -> None:
        oom_score = self._open_oom_score()
        steps = self._steps
        steps.begin("filter")
        self._filter.install()  # no plan has a say in it: who waits for the rest need not wait for this
        steps.end("filter")
        data = self._sync.recv(_LARGEST_MESSAGE, socket.MSG_PEEK)  # pid 1 reads it, should it ever wake up
        if not data:
            os._exit(0)  # the keeper is gone
        steps.restart()
        plan = JailPlan.unpack(data)
        os.chdir(b"/")
        steps.begin("limits")
        limit(plan, self._held)
        steps.end("limits")
        steps.begin("user")
        self._become("user", plan)
        steps.end("user")
        steps.begin("confine")
        landlock.restrict(self._landlock_abi)  # its rules are about the root directory that there is by now
        steps.end("confine")
        self._sync.send(steps.report() if plan.trace else b"{}")
        guest_program.become(self._program, self.listeners["user"].fileno(), oom_score)

    def _report(self, error: Exception) -> None:
        self._steps.voice = self._sync
        report_failure(self._steps, error)

    def _write_maps(self, pid: int) -> None:
        if self._root_mode:
            ids = (IdMap(0, 0, 65536),)
        elif self._whole:
            ids = subordinate_ids.identity(ORDINARY_ID)
        else:
            ids = (IdMap(ORDINARY_ID, 0, 1),)
        namespaces.write_id_maps(pid, ids, ids, deny_setgroups=not self._whole, proc_fd=self._proc)

    def _open_oom_score(self) -> int:
        # The files of a process that is not dumpable are the machine's root's (proc(5)), and a copy of pid 1 is none.
        # Before it enters the namespace of the workloads nobody in there may touch it all the same.
        prctl.set_dumpable(True)
        try:
            return os.open(b"self/oom_score_adj", os.O_RDWR | os.O_CLOEXEC, dir_fd=self._proc)
        finally:
            prctl.set_dumpable(False)

    def _become(self, identity: str, plan: JailPlan) -> None:
        user = _entry(plan, identity)
        if self._whole:
            os.setgroups([])
        os.setresgid(user.gid, user.gid, user.gid)
        if identity == "root":
            caps.drop_bounding(*_ROOT_CAPABILITIES)
            caps.keep_only(*_ROOT_CAPABILITIES)
        os.setresuid(user.uid, user.uid, user.uid)
        if identity != "root":
            caps.drop_all()  # where the one uid that there is was its own all along, no change of it has done that
        prctl.set_dumpable(False)
        prctl.set_parent_death_signal(signal.SIGKILL)


def _entry(plan: JailPlan, identity: str) -> User:
    return plan.user if identity == "user" else next(user for user in plan.users if user.name == identity)


_UNCOUNTED = {
    system_v: seccomp.Filter(seccomp_profile.build_uncounted(os.uname().machine, system_v=system_v))
    for system_v in (False, True)
}


def limit(plan: JailPlan, held: frozenset[str]) -> None:
    """The ceilings of each process, for the caller and all that it starts, beside those that hold for all plans.

    `held` is what control groups limit for all processes together, and count; the rest is limited here, for each.
    """
    rlimits.apply(
        rlimits.ResourceLimits(
            open_files=plan.open_files,
            processes=None if "pids" in held else plan.processes,
            file_bytes=plan.file_bytes or plan.disk_bytes,
        )
    )
    if "memory" not in held:
        rlimits.set_limit(resource.RLIMIT_DATA, plan.memory_bytes)
        if plan.kind == JAIL:  # the memory of a virtual machine or of gVisor is a memfd, which their processes map
            _UNCOUNTED[_shares.has_bounded_ipc()].install()
