"""What a model wrote, taken apart while it streams: reasoning, text, and calls of tools in the format of its family."""
