"""From what the engine puts out to what a client reads."""
