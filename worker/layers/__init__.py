"""Parts that the decoders are made of."""
