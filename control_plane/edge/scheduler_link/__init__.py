"""The front end's side of its session with the scheduler."""
