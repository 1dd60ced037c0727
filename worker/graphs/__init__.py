"""Decode steps as graphs: the forward of each of a few fixed shapes is captured once, then replayed over buffers that stay in place."""
