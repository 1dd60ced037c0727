"""Conversions of checkpoints, and what `make demo` runs."""
