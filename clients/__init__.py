"""Clients: the Python client library, the command line and the load generator."""
