"""The level `gvisor`: a separate kernel for a sandbox's programs, written in a memory-safe language, in a jail."""

from ._backend import GvisorBackend as GvisorBackend
