"""What clients see: the gRPC services, validation, and the way from a request to the engine and back."""
