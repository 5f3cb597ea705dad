"""Run code that AI agents wrote on your own Linux machine, safely.

`Sandbox.create()` makes a sandbox: own files, own processes, no network, hard limits. Its `with` block deletes it.

    from paddock import Sandbox

    with Sandbox.create() as sandbox:
        print(sandbox.exec("echo hello").stdout)

`help(Sandbox)` has its methods. `AsyncSandbox` has the same, awaited. Every error is a `PaddockError`.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from paddock.client import AsyncConnection as AsyncConnection
    from paddock.client import AsyncProcess as AsyncProcess
    from paddock.client import AsyncSandbox as AsyncSandbox
    from paddock.client import AsyncSnapshot as AsyncSnapshot
    from paddock.client import AsyncWorkspace as AsyncWorkspace
    from paddock.client import Connection as Connection
    from paddock.client import Forward as Forward
    from paddock.client import Process as Process
    from paddock.client import Sandbox as Sandbox
    from paddock.client import Snapshot as Snapshot
    from paddock.client import Workspace as Workspace
    from paddock.client import approvals as approvals
    from paddock.client import async_approvals as async_approvals
    from paddock.client import async_secrets as async_secrets
    from paddock.client import local as local
    from paddock.client import local_async as local_async
    from paddock.client import secrets as secrets
    from paddock.errors import CommandFailedError as CommandFailedError
    from paddock.errors import PaddockError as PaddockError
    from paddock.model import ExecResult as ExecResult
    from paddock.model import ExitStatus as ExitStatus
    from paddock.model import FileInfo as FileInfo
    from paddock.model import Level as Level
    from paddock.model import Limit as Limit
    from paddock.model import Limits as Limits
    from paddock.model import Mount as Mount
    from paddock.model import MountMode as MountMode
    from paddock.model import PtySize as PtySize
    from paddock.model import State as State
    from paddock.model import Usage as Usage

__version__ = "0.1.0.dev0"

# Names are resolved on first use: `import paddock.linux` in the supervisor and `paddock --help` import nothing else.
_HOMES = {
    name: module
    for module, names in {
        "paddock.client": (
            "AsyncConnection AsyncProcess AsyncSandbox AsyncSnapshot AsyncWorkspace Connection Forward Process Sandbox"
            " Snapshot Workspace approvals async_approvals async_secrets local local_async secrets"
        ),
        "paddock.errors": "CommandFailedError PaddockError",
        "paddock.model": "ExecResult ExitStatus FileInfo Level Limit Limits Mount MountMode PtySize State Usage",
    }.items()
    for name in names.split()
}

if not TYPE_CHECKING:  # to a type checker any name would be one, modules of the package too
    __all__ = sorted([*_HOMES, "__version__"])

    def __getattr__(name: str) -> object:
        home = _HOMES.get(name)
        if home is None and f"{name}Error" in _HOMES:  # its name from before 1.0
            return getattr(__import__("paddock.errors", fromlist=(name,)), name)
        if home is None:
            raise AttributeError(f"module 'paddock' has no attribute {name!r}")
        value = globals()[name] = getattr(__import__(home, fromlist=(name,)), name)
        return value

    def __dir__() -> list[str]:
        return __all__
