"""An HTTP API in front of the daemon. Empty for now: paddock is embedded in its caller."""
