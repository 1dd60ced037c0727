"""Routes of the gateway."""
