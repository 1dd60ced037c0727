"""What HTTP clients get: whole answers, and the events of streams."""
