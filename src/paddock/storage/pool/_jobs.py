"""The worker: a separate program, which the daemon executes (`worker`).

It forks one process for each job.

It has one thread, and one socket of the daemon. The process of a job has the descriptors of that job. It closes all
others before it begins.
"""

from __future__ import annotations

import gc
import json
import math
import os
import resource
import socket
import stat
from contextlib import suppress
from functools import partial
from importlib import import_module
from operator import attrgetter
from typing import Any, NoReturn

from paddock.errors import InternalError, PaddockError, ResourceExhaustedError
from paddock.linux import caps, children, confine, descriptors, namespaces, seccomp, seccomp_profile
from paddock.linux.subordinate_ids import SubordinateIds, open_namespace
from paddock.model import codec
from paddock.supervisor.layout import ORDINARY_ID

MEMORY_BYTES = 2 << 30
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
        children.serve(peer, partial(_begin, calls), _finish, idle=math.inf if ids else _IDLE_SECONDS)
    os._exit(0)


def _begin(calls: seccomp.Filter, message: bytes, fds: list[int]) -> children.Child:
    seconds, _, name = message.decode().partition(" ")
    with suppress(Exception):  # the job says why. Here, the modules stay for the next jobs
        named(name)
    requester = socket.socket(fileno=fds[0])
    pid = children.fork(lambda: _answer(requester, _done(requester, name, fds[1:], calls)), *fds)
    for fd in fds[1:]:
        os.close(fd)
    return children.Child(os.pidfd_open(pid), requester, int(seconds))


def _finish(job: children.Child, ended: os.waitid_result | None, late: bool) -> None:
    if ended is None or ended.si_code == os.CLD_EXITED:
        return
    if late:
        error = ResourceExhaustedError(f"the work on a tree took more than {job.seconds} seconds")
    else:
        killed = f"the process that works on a tree was killed by signal {ended.si_status}"
        error = InternalError(killed, hint="try again")
    _answer(job.requester, error)


def _done(requester: socket.socket, name: str, fds: list[int], calls: seccomp.Filter) -> dict[str, object] | Exception:
    """Be the process of one job: no network, no program, no other process, no files but the job's directories."""
    try:
        work = named(name)
        arguments = json.loads(b"".join(iter(lambda: requester.recv(1 << 16), b"")))
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
