"""The asynchronous loop, written by hand; the synchronous one is generated from it."""
