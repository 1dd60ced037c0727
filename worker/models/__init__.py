"""Model executors, one module per family."""

from worker.models.model import Model, ModelDescription, Placement
from worker.models.registry import load_model

__all__ = ["Model", "ModelDescription", "Placement", "load_model"]
