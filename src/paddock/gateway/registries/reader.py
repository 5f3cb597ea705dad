"""Reads pages in separate processes without privileges: see docs/design/registries.md.

One gets a job with its page, and answers with the filtered page: each one message of MessagePack.
"""

from __future__ import annotations

import asyncio
import os
import resource
from collections.abc import Iterator
from functools import partial

import msgspec

from paddock.gateway.processes.fork_server import ForkServer, ask
from paddock.gateway.protocols.refusal import Refused
from paddock.linux import confine as process
from paddock.linux import prctl, seccomp, seccomp_profile

from .page import Answer
from .protocols import MOST_PAGE_BYTES, Job, read

MOST_AT_ONCE = 8
_MOST_MEMORY_BYTES = 1 << 30
_MOST_SECONDS = 20
_CALLS = """
read write recvfrom recvmsg sendto sendmsg close exit exit_group brk mmap munmap mremap mprotect madvise
futex set_robust_list rseq rt_sigaction rt_sigprocmask rt_sigreturn sigaltstack restart_syscall getpid gettid getrandom
clock_gettime setrlimit prlimit64 fstat sched_yield getsockname getsockopt
"""
_encode = msgspec.msgpack.Encoder().encode
_job = msgspec.msgpack.Decoder(Job).decode
_answer = msgspec.msgpack.Decoder(Answer).decode


class Reader(ForkServer):
    """The process that forks readers, one for each page."""

    def __init__(self) -> None:
        calls = seccomp.Filter(seccomp_profile.build_only(os.uname().machine, _CALLS.split()))
        super().__init__("the reader of pages", partial(_read_pages, calls))
        self._turns = asyncio.Semaphore(MOST_AT_ONCE)

    async def read(self, job: Job, turn: asyncio.Semaphore) -> Answer:
        """Read a page in the caller's `turn`. Raise Refused without an answer. A caller that leaves ends its reader."""
        async with turn, self._turns:
            try:
                with self.start() as child:
                    return _answer(await ask(child, _encode(job), 4 * MOST_PAGE_BYTES))
            except EOFError:
                reason = f"the index's page can't be read within {_MOST_SECONDS} s and {_MOST_MEMORY_BYTES >> 30} GiB"
                raise Refused(reason, status=502, rule="registry") from None
            except (OSError, ValueError, msgspec.MsgspecError):
                raise Refused("pages can't be read: their reader is gone", status=503, rule="registry") from None


# -- the other side ----------------------------------------------------------------------------------------------------


def _read_pages(calls: seccomp.Filter, jobs: Iterator[bytes]) -> Iterator[bytes]:
    prctl.set_name(b"paddock-reader")
    os.dup2(0, 2)
    limits = {resource.RLIMIT_AS: _MOST_MEMORY_BYTES, resource.RLIMIT_CPU: _MOST_SECONDS, resource.RLIMIT_FSIZE: 0}
    for number, value in limits.items():
        process.limit(number, value)
    process.confine(readable=(), writable=(), calls=calls)
    for job in jobs:
        yield _encode(read(_job(job)))
