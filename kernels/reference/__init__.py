"""Plain torch form of every operator: the specification, and what runs where no faster form is registered."""
