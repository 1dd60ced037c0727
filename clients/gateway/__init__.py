"""The HTTP gateway: OpenAI's API in front of control planes, which it calls as any other client does."""
