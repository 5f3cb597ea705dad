"""The agent loop over the client. Empty for now; `examples/` holds a small one."""
