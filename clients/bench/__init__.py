"""Load generator: how fast a running server is, seen from outside."""
