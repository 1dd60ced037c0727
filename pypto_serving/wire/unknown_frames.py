"""Frames of a newer peer."""

from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet


def is_unknown_kind(frame: Message) -> bool:
    """Whether a frame is of a kind that this build does not know, and is to be ignored; an empty one is of no kind."""
    return frame.WhichOneof("frame") is None and len(UnknownFieldSet(frame)) > 0
