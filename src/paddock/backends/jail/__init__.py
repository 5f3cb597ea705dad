"""The jail: namespaces, seccomp, Landlock, cgroups and quotas on the host's own kernel, made by the supervisor."""

from ._instance import SupervisorKeeping as SupervisorKeeping
from ._supervisor import SupervisorClient as SupervisorClient
from .backend import JailBackend as JailBackend
