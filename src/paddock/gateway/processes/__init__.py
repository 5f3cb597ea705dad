"""Processes beside the gateway that must not share its memory: fork servers and the process resolver."""
