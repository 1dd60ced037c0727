"""Engines to compare, each in a process of its own and, if need be, in a virtual environment of its own."""
