"""The way to a worker: from a probe of its port to a stream of frames."""
