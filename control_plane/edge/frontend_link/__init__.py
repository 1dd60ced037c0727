"""The scheduler's side of the sessions with front ends."""
