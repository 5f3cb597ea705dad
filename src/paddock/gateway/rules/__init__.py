"""Decides about requests and their secrets. Pure."""
