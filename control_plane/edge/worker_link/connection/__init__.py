"""The way to a worker: from knocking at its port to a stream of frames."""
