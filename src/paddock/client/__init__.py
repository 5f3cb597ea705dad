"""The SDK. The asynchronous side is written, the synchronous one generated from it.

The names are resolved on first use: a program needs one side, and a part of that.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ._async import approvals as _async_approvals
    from ._async import secrets as _async_secrets
    from ._async.changes import AsyncChanges as AsyncChanges
    from ._async.connection import AsyncConnection as AsyncConnection
    from ._async.daemon import AsyncDaemonTransport as AsyncDaemonTransport
    from ._async.daemon import default_async_transport as default_async_transport
    from ._async.filesystem import AsyncFilesystem as AsyncFilesystem
    from ._async.process import AsyncProcess as AsyncProcess
    from ._async.process import AsyncReader as AsyncReader
    from ._async.process import AsyncWriter as AsyncWriter
    from ._async.sandbox import AsyncSandbox as AsyncSandbox
    from ._async.snapshot import AsyncSnapshot as AsyncSnapshot
    from ._async.transport import AsyncTransport as AsyncTransport
    from ._async.workspace import AsyncWorkspace as AsyncWorkspace
    from ._command import absolute_template as absolute_template
    from ._control import daemon_log as daemon_log
    from ._control import daemon_status as daemon_status
    from ._control import stop_daemon as stop_daemon
    from ._forward import Forward as Forward
    from ._session import Session as Session
    from ._session import session as session
    from ._sync import approvals as approvals
    from ._sync import secrets as secrets
    from ._sync.changes import Changes as Changes
    from ._sync.connection import Connection as Connection
    from ._sync.daemon import DaemonTransport as DaemonTransport
    from ._sync.daemon import default_transport as default_transport
    from ._sync.filesystem import Filesystem as Filesystem
    from ._sync.process import Process as Process
    from ._sync.process import Reader as Reader
    from ._sync.process import Writer as Writer
    from ._sync.sandbox import Sandbox as Sandbox
    from ._sync.snapshot import Snapshot as Snapshot
    from ._sync.transport import Transport as Transport
    from ._sync.workspace import Workspace as Workspace
    from ._transfer import TransferReport as TransferReport

    async_approvals, async_secrets = _async_approvals, _async_secrets
    local, local_async = default_transport, default_async_transport

HOMES = {
    name: module
    for module, names in {
        "._async.changes": "AsyncChanges",
        "._async.connection": "AsyncConnection",
        "._async.daemon": "AsyncDaemonTransport default_async_transport",
        "._async.filesystem": "AsyncFilesystem",
        "._async.process": "AsyncProcess AsyncReader AsyncWriter",
        "._async.sandbox": "AsyncSandbox",
        "._async.snapshot": "AsyncSnapshot",
        "._async.transport": "AsyncTransport",
        "._async.workspace": "AsyncWorkspace",
        "._command": "absolute_template",
        "._control": "daemon_log daemon_status stop_daemon",
        "._forward": "Forward",
        "._session": "Session session",
        "._sync": "approvals secrets",
        "._sync.changes": "Changes",
        "._sync.connection": "Connection",
        "._sync.daemon": "DaemonTransport default_transport",
        "._sync.filesystem": "Filesystem",
        "._sync.process": "Process Reader Writer",
        "._sync.sandbox": "Sandbox",
        "._sync.snapshot": "Snapshot",
        "._sync.transport": "Transport",
        "._sync.workspace": "Workspace",
        "._transfer": "TransferReport",
    }.items()
    for name in names.split()
}
"""The module of each name."""


def __getattr__(name: str) -> object:
    if name in ("async_approvals", "async_secrets"):  # the modules that `approvals` and `secrets` are made from
        module = name.removeprefix("async_")
        value = globals()[name] = getattr(__import__(f"{__name__}._async", fromlist=(module,)), module)
        return value
    source = {"local": "default_transport", "local_async": "default_async_transport"}.get(name, name)
    home = HOMES.get(source)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(__import__(__name__ + home, fromlist=(source,)), source)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *HOMES, "async_approvals", "async_secrets", "local", "local_async"})
