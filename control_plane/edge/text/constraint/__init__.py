"""Constraints on the output of a model: grammars, compiled by llguidance, over the bytes of the model's tokens."""
