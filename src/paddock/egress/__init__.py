"""The gateway: what may leave a sandbox. Empty for now: a sandbox has a loopback and nothing else."""
