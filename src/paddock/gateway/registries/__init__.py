"""Filters and caches the answers of package registries."""
