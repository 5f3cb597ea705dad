"""Garbage collection, reports of the machine, and signatures of the audit log."""
