"""The jail: namespaces, seccomp, Landlock, cgroups and quotas on the host's own kernel, made by the supervisor."""

from ._instance import DescriptorStore as DescriptorStore
from ._supervisor import SupervisorClient as SupervisorClient
from .backend import JailBackend as JailBackend
