"""Runs whose system calls go wrong: `python -m tests.faults --help`."""
