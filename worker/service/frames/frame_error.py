"""What is wrong with a frame of a control plane."""


class FrameError(ValueError):
    """A frame breaks the contract; the message names the field, its value and the limit."""
