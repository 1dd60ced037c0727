"""Flags of the programs of a control plane."""
