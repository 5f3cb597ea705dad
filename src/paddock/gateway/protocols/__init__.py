"""Read and write what programs say: HTTP, TLS hellos, DNS. Pure: bytes and values, no sockets."""
