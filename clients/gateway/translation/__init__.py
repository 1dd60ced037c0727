"""From the bodies of HTTP requests to requests of control planes."""
