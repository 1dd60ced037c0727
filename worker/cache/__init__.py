"""KV memory: its layout and its size."""
