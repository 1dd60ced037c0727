"""From what a client sends to a request that the engine takes."""
