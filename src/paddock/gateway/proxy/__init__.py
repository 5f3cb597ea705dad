"""Accept, check and relay connections. This is where the gateway reads and writes sockets."""
