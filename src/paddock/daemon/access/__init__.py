"""Decide what a sandbox may do and reach: policies, approvals, secrets, and the gateway that enforces them."""
