"""Why a model can not be served."""

from pypto_serving.process.start_up import StartUpError


class ModelRefused(StartUpError):
    """A model that can not be served as it is; the message is one line that names the file, the field or tensor, and the value."""
