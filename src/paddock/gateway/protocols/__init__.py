"""Protocols as pure functions of bytes and values, without sockets: HTTP, TLS hellos, DNS."""
