"""The level `microvm`."""

from ._backend import MicrovmBackend as MicrovmBackend
