"""The spawner and running beside the sandboxes: one process per state directory and uid.

It is the parent of every sandbox, holds their deadlines and kills them on time whether or not a service is alive.
Standard library only; it carries no secrets and no bytes of execs, and reads nothing that comes from inside a sandbox.
"""
