"""Plain torch implementation of every operator: the specification, and what runs where nothing faster is registered."""
