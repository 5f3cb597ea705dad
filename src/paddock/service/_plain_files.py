"""The first step of each script that lets git read a workspace: what git would wait for, or never finish, is named."""

from __future__ import annotations

from ._workspace_tree import WORKSPACE

SECONDS = 60.0
"""What git may take in a workshop that reads an attacker's repository, all commands together. What the names below
miss, such as a pipe behind a link, ends then."""

# Git opens these by name, whatever they are. It opens no hook here, and to a socket nothing can be opened; fsmonitor
# leaves one. Links to plain files and directories are an everyday thing.
PLAIN_FILES = f"""
odd=$(find {WORKSPACE} \\( -path '*/.git/hooks' -o -name fsmonitor--daemon.ipc \\) -prune -o \\
    \\( -path '*/.git/*' -o -name .gitignore -o -name .gitattributes -o -name .gitmodules -o -name .git \\) \\
    \\( -xtype p -o -xtype b -o -xtype c -o -xtype s -o -type f -size +256M ! -path '*/.git/objects/*' \\) \\
    -print -quit 2>/dev/null) || :  # where find may not look, git may not either
if [ -n "$odd" ]; then
    echo "$odd is a pipe, device or socket, or larger than 256 MiB, and git would read it" >&2
    exit 1
fi
"""
