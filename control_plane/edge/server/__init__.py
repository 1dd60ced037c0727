"""Assembles the processes of a control plane."""
