"""Control plane: accepts requests, schedules them, owns every KV page, and never imports torch."""
