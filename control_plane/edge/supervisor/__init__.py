"""Runs a control plane as one scheduler process and several front ends. Nothing here imports gRPC; `parent` is the children's side."""
