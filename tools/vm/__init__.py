"""A virtual machine as most users have it: systemd, cgroup version 2 only, a distribution's own kernel."""
