"""The controller of a VMM, and the file server of a virtual machine.

Both run out of the kit.

Standard library only. It imports no other package of ours.
"""
