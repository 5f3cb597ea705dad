"""Supervise all sandboxes of one state directory and one user: make, pause and kill them.

The supervisor is the parent of every sandbox. It holds their deadlines and kills them on time, with or without a
daemon. It uses the standard library alone. It holds no secrets, carries no output of commands, and reads nothing that
comes from inside a sandbox.
"""
