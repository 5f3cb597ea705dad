"""Agents: the processes inside a sandbox that start commands, one per identity.

They live in an inner user namespace, so that root among the commands has no power over pid 1, over the mounts or
over the network; and they put on the filters first, so that whatever they start by vfork is born with them.
"""

from __future__ import annotations

import os
import signal
import socket
from typing import NoReturn

from paddock import guest
from paddock.keeper._plan import JailPlan, User
from paddock.linux import caps, landlock, namespaces, prctl, seccomp
from paddock.linux.namespaces import IdMap

EXEC_DIRECTORY = ".paddock/exec"  # below the home directory: what background commands print
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

    `proc` is a descriptor of a mount of /proc that can be written, which no command ever sees.
    """

    def __init__(
        self,
        plan: JailPlan,
        root_mode: bool,
        filter: seccomp.Filter,
        listeners: dict[str, socket.socket],
        sync: socket.socket,
        *,
        landlock_abi: int,
        proc: int,
    ) -> None:
        self._plan = plan
        self._root_mode = root_mode
        self._filter = filter
        self._listeners = listeners
        self._sync = sync
        self._landlock_abi = landlock_abi
        self._proc = proc
        self._inner: int | None = None

    def start(self, identity: str) -> int:
        """Forks the agent `identity` ("user" or "root") and returns its pid. OSError."""
        if self._inner is None:
            return self._start_first(identity)
        pid = namespaces.clone(0)
        if pid == 0:
            try:
                oom_score = self._open_oom_score()
                namespaces.setns(self._inner, namespaces.NEWUSER)
                self._become_agent(identity, None, oom_score)
            finally:
                os._exit(1)
        return pid

    def _start_first(self, identity: str) -> int:
        mapped, tell = os.pipe()
        pid = namespaces.clone(namespaces.NEWUSER)
        if pid == 0:
            try:
                os.close(tell)
                if not os.read(mapped, 1):
                    os._exit(1)
                os.close(mapped)
                self._become_agent(identity, self._sync, self._open_oom_score())
            finally:
                os._exit(1)
        os.close(mapped)
        try:
            self._write_maps(pid)
            self._inner = os.open(b"%d/ns/user" % pid, os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._proc)
            os.write(tell, b"1")
        finally:
            os.close(tell)
        return pid

    def _write_maps(self, pid: int) -> None:
        user = self._plan.user
        uids = IdMap(0, 0, 65536) if self._root_mode else IdMap(user.uid, 0, 1)
        gids = IdMap(0, 0, 65536) if self._root_mode else IdMap(user.gid, 0, 1)
        namespaces.write_id_maps(pid, (uids,), (gids,), deny_setgroups=not self._root_mode, proc_fd=self._proc)

    def _open_oom_score(self) -> int:
        # The files of a process that is not dumpable are the machine's root's (proc(5)), and a copy of pid 1 is none.
        # Before it enters the namespace of the workloads nobody in there may touch it all the same.
        prctl.set_dumpable(True)
        try:
            return os.open(b"self/oom_score_adj", os.O_WRONLY | os.O_CLOEXEC, dir_fd=self._proc)
        finally:
            prctl.set_dumpable(False)

    def _become_agent(self, identity: str, sync: socket.socket | None, oom_score: int) -> NoReturn:
        user = self._user(identity)
        if self._root_mode:
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
        prctl.set_no_new_privileges()
        landlock.restrict(self._landlock_abi)
        self._filter.install()
        if sync is not None:
            sync.send(b'{"agent": true}')
        guest.run_agent(self._listeners[identity], self._config(identity, user, oom_score))

    def _user(self, identity: str) -> User:
        if identity == "user":
            return self._plan.user
        return next(user for user in self._plan.users if user.name == identity)

    def _config(self, identity: str, user: User, oom_score: int) -> guest.AgentConfig:
        entries = tuple(guest.UserEntry(name=u.name, uid=u.uid, gid=u.gid, home=u.home) for u in self._plan.users)
        return guest.AgentConfig(
            user=guest.UserEntry(name=user.name, uid=user.uid, gid=user.gid, home=user.home),
            workdir=self._plan.workdir,
            exec_dir=f"{user.home}/{EXEC_DIRECTORY}",
            env={**self._plan.env, "HOME": user.home, "USER": user.name, "LOGNAME": user.name},
            users=entries,
            may_switch_user=identity == "root",
            oom_score=oom_score,
        )
