"""The kernel, one file per concept: standard library and ctypes only, usable in a freshly cloned child.

Every call that fails raises OSError; its `filename` says what was attempted. Nothing here starts threads,
imports inside functions, or keeps state.
"""
