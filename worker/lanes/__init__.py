"""Lanes: the state of live sequences, the rules of a step, and the batch that a step makes of them."""
