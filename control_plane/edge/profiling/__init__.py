"""Recordings of what the processes of a service do."""
