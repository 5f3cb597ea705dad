"""Repositories, workspaces, and the results that leave them."""
