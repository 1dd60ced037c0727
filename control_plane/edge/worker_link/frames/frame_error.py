"""What is wrong with a frame of a worker."""


class FrameError(ValueError):
    """A frame of the worker makes no sense; the message names field, value and limit."""
