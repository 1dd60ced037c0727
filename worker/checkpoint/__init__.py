"""A checkpoint on disk: its files, its config.json, its tensors."""
