"""The controller of a VMM, and the file server of a virtual machine.

Both run out of the kit. They import the standard library, `paddock.linux` and `paddock.wire`, and nothing else.
"""
