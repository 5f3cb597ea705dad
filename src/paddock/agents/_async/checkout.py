"""A directory of a warm sandbox, and the changes to it afterwards."""

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
    """The state of a directory in a warm sandbox, and what forks change in it afterwards.

    `of` records it. `notes` name files that aren't part of the state.

    Example:
        ```python
        checkout = await AsyncCheckout.of(sandbox)
        async with await sandbox.fork() as child:
            await child.exec("echo new > notes.txt")
            print((await checkout.diff(child)).decode())
        ```
    """

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

        Call it after the setup: attempts start from forks of this sandbox.

        Args:
            sandbox: The warm sandbox.
            directory: The directory, which need not be a repository.
            timeout_seconds: How long git may take.

        Returns:
            The checkout.

        Raises:
            InvalidStateError: The template has no git, or the user can't read the directory.

        Example:
            ```python
            checkout = await AsyncCheckout.of(sandbox, "/workspace")
            print(checkout.directory, checkout.notes)  # /workspace ()
            ```
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
        """Compare a fork with the recorded state.

        Args:
            sandbox: The fork.

        Returns:
            A patch, as `git apply` reads it.

        Raises:
            InvalidStateError: The patch is over 16 MiB, or git fails in the fork.

        Example:
            ```python
            async with await checkout.sandbox.fork() as child:
                await child.exec("sed -i 's/return x/return 2 * x/' task.py")
                patch = await checkout.diff(child)
            ```
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
        """Apply a patch to a fork.

        Args:
            sandbox: The fork.
            patch: A patch against the recorded state.

        Returns:
            The program that could apply it, such as `git apply`.

        Raises:
            InvalidStateError: The patch doesn't apply.

        Example:
            ```python
            async with await checkout.sandbox.fork() as child:
                print(await checkout.apply(child, b""))  # nothing
            ```
        """
        result = await self._git(sandbox, _checkout.APPLY, patch=patch)
        if not result.ok:
            output = result.stderr.strip() or result.observation()
            raise InvalidStateError(f"the patch does not apply: {cut(output, _SAID_CHARS)}")
        return result.stdout.strip()

    async def test(self, sandbox: AsyncSandbox, test: Test) -> Verdict:
        """Run the tests in a fork.

        Args:
            sandbox: The fork.
            test: The command, and the report that it writes.

        Returns:
            Whether they passed, with counts and output.

        Raises:
            SandboxDiedError: The fork has ended.

        Example:
            ```python
            async with await checkout.sandbox.fork() as child:
                print((await checkout.test(child, Test("grep -q double task.py"))).passed)  # True
            ```
        """
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
