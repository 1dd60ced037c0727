"""Model executors, one module per family."""

from worker.models.model import LoadOptions, Model, ModelDescription
from worker.models.registry import load_model

__all__ = ["LoadOptions", "Model", "ModelDescription", "load_model"]
