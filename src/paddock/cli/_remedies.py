"""What to do about a ceiling that struck."""

from __future__ import annotations

# The options belong to `run` and `create`.
REMEDY = {
    "memory": "give it more with --memory",
    "processes": "give it more with --processes",
    "disk": "give it more with --disk",
    "inodes": "it made too many files",
    "open_files": "it held too many files open",
    "output": "it printed too much: send its output to a file",
    "time": "give it longer with --timeout",
    "ttl": "give the sandbox longer with --ttl",
    "retention": "resume it in time, or set paused_retention_days in config.toml (paddock doctor shows its path)",
}
