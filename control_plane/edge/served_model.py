"""What the control plane knows of the model that it serves."""

from dataclasses import dataclass

from control_plane.edge.text.chat_template import ChatTemplate
from control_plane.edge.text.tokenizer import Tokenizer
from pypto_serving.inference.v1 import inference_pb2

#: Of models whose config does not say plainly how far they reach.
UNKNOWN_MAX_POSITIONS = 1 << 20


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model directory, read without its weights."""

    name: str  # by which requests call it
    architecture: str
    fingerprint: str
    vocab_size: int  # embedding rows
    end_token_ids: frozenset[int]  # union of config, generation config and tokenizer
    default_sampling: inference_pb2.SamplingParams  # every field set but the seed
    tokenizer: Tokenizer
    chat_template: ChatTemplate | None
    max_positions: int = UNKNOWN_MAX_POSITIONS  # no request has more tokens, whatever workers say later
