"""No isolation at all: for tests of what lies above, and for nothing else."""

from ._backend import ProcessBackend as ProcessBackend
