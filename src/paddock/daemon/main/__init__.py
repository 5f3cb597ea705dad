"""The process: start, sessions, requests, dispatch, recovery."""
