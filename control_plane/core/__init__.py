"""Core ring: sequences, KV pages and scheduling. Standard library only, no I/O, time is passed in."""
