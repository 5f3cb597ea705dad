"""Sandboxes from their creation to their cleanup, and what callers do with them."""
