"""The changes of a sandbox: listed, written as a patch, and promoted into a directory of the host."""
