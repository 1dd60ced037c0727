"""From logits to tokens, and to log probabilities."""
