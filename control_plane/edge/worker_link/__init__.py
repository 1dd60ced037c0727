"""The control plane's side of the worker protocol."""
