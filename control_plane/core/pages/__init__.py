"""The pages of the KV caches of workers: who holds which, and what they contain."""
