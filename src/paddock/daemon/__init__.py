"""The process that owns a state directory. Clients start it, and no other room imports it."""
