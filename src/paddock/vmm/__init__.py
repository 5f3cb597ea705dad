"""The controller of a VMM, and what serves a virtual machine its files. Both run out of the kit.

Standard library only; imports nothing of ours but itself.
"""
