"""Decide what a request may do, and which secrets it gets. Pure."""
