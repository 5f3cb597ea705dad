"""The gateway: the proxy for all traffic of a sandbox.

This package imports nothing itself, because its dependencies are slow to import. The SDK and sandboxes without a policy
don't need them.
"""
