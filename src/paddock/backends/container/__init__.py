"""Containers of Docker's or Podman's engine, with our guest in them."""

from ._backend import ContainerBackend as ContainerBackend
