"""The one process that owns a state directory. Clients start it; nothing imports it but its own entry point."""
