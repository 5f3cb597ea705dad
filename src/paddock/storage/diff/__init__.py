"""What a sandbox has changed: listed, told as a patch, and taken over into a directory of the host."""
