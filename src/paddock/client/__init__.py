"""The SDK. The asynchronous side is written, the synchronous one generated from it."""

from ._async.changes import AsyncChanges as AsyncChanges
from ._async.filesystem import AsyncFilesystem as AsyncFilesystem
from ._async.local import AsyncLocalTransport as AsyncLocalTransport
from ._async.process import AsyncProcess as AsyncProcess
from ._async.process import AsyncReader as AsyncReader
from ._async.process import AsyncWriter as AsyncWriter
from ._async.sandbox import AsyncSandbox as AsyncSandbox
from ._async.transport import AsyncTransport as AsyncTransport
from ._async.workspace import AsyncWorkspace as AsyncWorkspace
from ._bridge import LoopThread as LoopThread
from ._command import absolute_template as absolute_template
from ._default import Connector as Connector
from ._default import install as install
from ._home import Door as Door
from ._home import Home as Home
from ._sync.changes import Changes as Changes
from ._sync.filesystem import Filesystem as Filesystem
from ._sync.local import LocalTransport as LocalTransport
from ._sync.process import Process as Process
from ._sync.process import Reader as Reader
from ._sync.process import Writer as Writer
from ._sync.sandbox import Sandbox as Sandbox
from ._sync.transport import Transport as Transport
from ._sync.workspace import Workspace as Workspace
from ._transfer import TransferReport as TransferReport
