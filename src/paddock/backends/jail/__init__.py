"""The jail: namespaces, seccomp, Landlock, cgroups and quotas on the host's own kernel, made by the keeper."""

from ._backend import JailBackend as JailBackend
from ._keeper import KeeperClient as KeeperClient
