"""The worker: a separate program, which the daemon executes (`worker`).

It forks one process for each job.

It has one thread, and one socket of the daemon. The process of a job has the descriptors of that job. It closes all
others before it begins.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import select
import signal
import socket
import stat
import time
from contextlib import suppress
from importlib import import_module
from operator import attrgetter
from typing import Any, NamedTuple, NoReturn

from paddock.errors import InternalError, PaddockError, ResourceExhaustedError
from paddock.linux import caps, children, confine, descriptors, namespaces, seccomp, seccomp_profile
from paddock.linux.subordinate_ids import SubordinateIds, open_namespace
from paddock.model import codec
from paddock.supervisor.layout import ORDINARY_ID

MEMORY_BYTES = 2 << 30
MOST_DESCRIPTORS = 8
_NAME_BYTES = 300
_IDLE_SECONDS = 30.0
_FILES = 1024
# The capabilities for work on other users' files. CAP_MKNOD isn't among them: all users may make overlay whiteouts.
_CAPABILITIES = (caps.CHOWN, caps.DAC_OVERRIDE, caps.FOWNER, caps.FSETID, caps.SETFCAP)
_NOT_CALLED = """
accept accept4 bind connect listen fork vfork execve execveat kill tkill tgkill pidfd_send_signal process_mrelease
ptrace process_vm_readv process_vm_writev prctl setuid setgid setreuid setregid setresuid setresgid setgroups
mq_open mq_unlink msgget msgsnd semget semop shmat inotify_init inotify_init1
"""
_CALLED = (seccomp_profile.ALLOWED - set(_NOT_CALLED.split())) | {"mmap", "ioctl", "memfd_create"}


def named(name: str) -> Any:
    """Import `MODULE:NAME`."""
    module, _, path = name.partition(":")
    return attrgetter(path)(import_module(module))


class _Job(NamedTuple):
    end: socket.socket
    seconds: int
    deadline: float


def serve(control: int, ids: list[int] | None) -> NoReturn:
    """Be the worker of the process at the other end of `control`, and end with it."""
    peer = socket.socket(fileno=control)
    calls = seccomp.Filter(seccomp_profile.build_only(os.uname().machine, _CALLED, free=("mknod", "mknodat")))
    why = None
    try:
        descriptors.close_all_but(control)
        if ids is not None:
            namespace = open_namespace(SubordinateIds(*ids), ORDINARY_ID)
            namespaces.setns(namespace, namespaces.NEWUSER)
            os.close(namespace)
    except OSError as error:
        why = str(error)
    peer.send(json.dumps(why).encode())
    if why is None:
        gc.freeze()
        _serve(peer, calls, idle=None if ids else _IDLE_SECONDS)
    os._exit(0)


def _serve(peer: socket.socket, calls: seccomp.Filter, *, idle: float | None) -> None:
    jobs: dict[int, _Job] = {}
    patience: float | None = None  # until its first job a worker waits: the daemon that has just started it sends one
    poll = select.poll()
    poll.register(peer, select.POLLIN)
    while True:
        wait = min((max(0.0, job.deadline - time.monotonic()) for job in jobs.values()), default=patience)
        ready = {fd for fd, _ in poll.poll(None if wait is None else wait * 1000)}
        if not ready and not jobs:
            peer.shutdown(socket.SHUT_RD)  # what was sent before is still there to be read
        if peer.fileno() in ready or not (ready or jobs):
            message, fds, _, _ = socket.recv_fds(peer, _NAME_BYTES, MOST_DESCRIPTORS)
            if not message:
                return
            seconds, _, name = message.decode().partition(" ")
            job = _Job(socket.socket(fileno=fds[0]), int(seconds), time.monotonic() + int(seconds))
            pidfd = _begin(job, name, fds[1:], calls)
            jobs[pidfd] = job
            poll.register(pidfd, select.POLLIN)
            patience = idle
        for pidfd, job in list(jobs.items()):
            late = time.monotonic() > job.deadline
            if late or pidfd in ready:
                poll.unregister(pidfd)
                _finish_job(pidfd, jobs.pop(pidfd), late=late)


def _begin(job: _Job, name: str, fds: list[int], calls: seccomp.Filter) -> int:
    with suppress(Exception):  # the job says why. Here, the modules stay for the next jobs
        named(name)
    pid = children.fork(lambda: _answer(job.end, _done(job, name, fds, calls)), job.end.fileno(), *fds)
    for fd in fds:
        os.close(fd)
    return os.pidfd_open(pid)


def _finish_job(pidfd: int, job: _Job, *, late: bool) -> None:
    with suppress(ProcessLookupError):
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)  # it has ended, or is too late
    ended = os.waitid(os.P_PIDFD, pidfd, os.WEXITED)
    os.close(pidfd)
    with job.end:
        if ended is None or ended.si_code == os.CLD_EXITED:
            return
        if late:
            error = ResourceExhaustedError(f"the work on a tree took more than {job.seconds} seconds")
        else:
            killed = f"the process that works on a tree was killed by signal {ended.si_status}"
            error = InternalError(killed, hint="try again")
        _answer(job.end, error)


def _done(job: _Job, name: str, fds: list[int], calls: seccomp.Filter) -> dict[str, object] | Exception:
    """Be the process of one job: no network, no program, no other process, no files but the job's directories."""
    try:
        work = named(name)
        arguments = json.loads(b"".join(iter(lambda: job.end.recv(1 << 16), b"")))
        confine.limit(resource.RLIMIT_AS, MEMORY_BYTES)
        confine.limit(resource.RLIMIT_NOFILE, _FILES)
        directories = [fd for fd in fds if stat.S_ISDIR(os.fstat(fd).st_mode)]
        confine.confine(
            readable=confine.code(), writable=directories, calls=calls, capabilities=_CAPABILITIES, moves=True
        )
        return {"value": work(*fds, *arguments)}
    except MemoryError:
        gc.collect()
        return ResourceExhaustedError(f"the work on a tree took more than {MEMORY_BYTES >> 20} MiB of memory")
    except PaddockError as error:
        return error
    except OSError as error:
        return error if error.filename is None else OSError(error.errno, f"{error.strerror}: {error.filename!r}")
    except Exception as error:
        return InternalError(f"{type(error).__name__}: {error}", hint="this is a bug")


def _answer(end: socket.socket, answer: dict[str, object] | Exception) -> None:
    encoded = codec.encode_error(answer) if isinstance(answer, Exception) else json.dumps(answer).encode()
    with suppress(OSError):  # no caller listens any more
        end.sendall(encoded + b"\n")
