"""Benchmarks: each prints a table and writes `out/*.json`; quote ratios, not milliseconds."""
