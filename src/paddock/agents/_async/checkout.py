"""A directory of a warm sandbox, and the changes in its forks."""

from __future__ import annotations

from collections.abc import Mapping

from paddock.agents import _checkout
from paddock.agents._attempt import REPORT_BYTES, Test, Verdict, verdict
from paddock.agents._tools import cut
from paddock.client import AsyncSandbox
from paddock.errors import FileError, InvalidStateError
from paddock.model import ExecResult

_SAID_CHARS = 1000


class AsyncCheckout:
    """The recorded state of a directory. `of` makes it. `notes` name the parts that the state leaves out."""

    def __init__(self, sandbox: AsyncSandbox, directory: str, tree: str, notes: tuple[str, ...]) -> None:
        self.sandbox = sandbox
        self.directory = directory
        self.notes = notes
        self._tree = tree
        self._env: Mapping[str, str] = _checkout.ENV | {"GIT_WORK_TREE": directory}

    @classmethod
    async def of(
        cls, sandbox: AsyncSandbox, directory: str = "/workspace", *, timeout_seconds: float = 300.0
    ) -> AsyncCheckout:
        """Record the state of the directory, with uncommitted and untracked files, without ignored ones.

        Call it after all preparations: the forks start from this state. Raises InvalidStateError if it can't record the
        state.
        """
        self = cls(sandbox, directory, "", ())
        result = await self._git(sandbox, _checkout.RECORD, timeout_seconds=timeout_seconds)
        tree = result.stdout.strip()
        if not result.ok or len(tree) != 40:
            raise InvalidStateError(
                f"the state of {directory} cannot be recorded: {cut(result.observation(), _SAID_CHARS)}",
                hint="git has to be in the template, and the directory readable",
            )
        return cls(sandbox, directory, tree, tuple(line for line in result.stderr.splitlines() if line.strip()))

    async def diff(self, sandbox: AsyncSandbox) -> bytes:
        """Return the changes of a fork, as `git apply` reads them.

        Raises InvalidStateError if they are too large, or git fails.
        """
        result = await self._git(sandbox, _checkout.DIFF, self._tree)
        if not result.ok:
            raise InvalidStateError(f"what was changed cannot be told: {cut(result.observation(), _SAID_CHARS)}")
        if result.out.omitted_bytes:
            raise InvalidStateError(
                f"the diff has {result.out.total_bytes} bytes, more than {_checkout.DIFF_BYTES}",
                hint="have what is generated ignored by .gitignore",
            )
        return result.out.head + result.out.tail

    async def apply(self, sandbox: AsyncSandbox, patch: bytes) -> str:
        """Apply a patch to a fork, and return the program that did it. Raises InvalidStateError if it doesn't apply."""
        result = await self._git(sandbox, _checkout.APPLY, patch=patch)
        if not result.ok:
            said = result.stderr.strip() or result.observation()
            raise InvalidStateError(f"the patch does not apply: {cut(said, _SAID_CHARS)}")
        return result.stdout.strip()

    async def test(self, sandbox: AsyncSandbox, test: Test) -> Verdict:
        """Runs the tests in a fork."""
        result = await sandbox.exec(test.command, cwd=self.directory, timeout_seconds=test.timeout_seconds)
        report: bytes | None = None
        if test.junit is not None:
            try:
                path = f"{self.directory}/{test.junit}"
                report = await sandbox.filesystem.read(path, max_bytes=REPORT_BYTES)
            except FileError:
                report = b""  # the exit code still tells; of counts nothing is known
        return verdict(result, report)

    async def _git(
        self, sandbox: AsyncSandbox, script: str, *arguments: str, patch: bytes = b"", timeout_seconds: float = 120.0
    ) -> ExecResult:
        return await sandbox.exec(
            ["/bin/sh", "-c", script, "sh", *arguments],
            cwd=self.directory,
            env=self._env,
            input=patch,
            timeout_seconds=timeout_seconds,
            capture_bytes=_checkout.DIFF_BYTES,
        )
