"""Other people's sandboxes, where they can be had from a registry: `make bench-peers`, `make bench ARGS=--peers`."""
