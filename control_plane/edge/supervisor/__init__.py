"""Runs a control plane as one scheduler process and several front ends. Nothing here imports gRPC."""
