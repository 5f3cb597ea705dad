"""The kernel's interfaces, one file per concept: standard library and ctypes only, usable in a freshly cloned child.

Every failing call raises OSError, and its `filename` names the call. This package starts no threads, has no imports
inside functions, and keeps no state.
"""
