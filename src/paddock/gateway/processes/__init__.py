"""Run beside the gateway what must not share its memory: fork servers and the process resolver."""
