"""HTTP in front of the door. Empty for now: paddock is embedded in its caller."""
