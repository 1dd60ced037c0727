"""What HTTP clients send, as pydantic models; they make the OpenAPI document."""
