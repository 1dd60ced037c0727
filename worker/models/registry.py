"""Which family serves which architecture."""

from collections.abc import Callable
from pathlib import Path

from worker.checkpoint.checkpoint import Checkpoint
from worker.models import llama, qwen2, qwen3, qwen3_moe
from worker.models.decoder_config import read_num_layers
from worker.models.model import LoadOptions, Model

# The names are those of `architectures` in config.json.
_FAMILIES: dict[str, Callable[[Checkpoint, LoadOptions], Model]] = {
    "LlamaForCausalLM": llama.load,
    "Qwen2ForCausalLM": qwen2.load,
    "Qwen3ForCausalLM": qwen3.load,
    "Qwen3MoeForCausalLM": qwen3_moe.load,
}


def load_model(directory: Path, options: LoadOptions) -> Model:
    """Load the model in a Hugging Face directory; ModelRefused, with one clear line, when it cannot be served."""
    checkpoint = Checkpoint(directory)
    architecture = check_architecture(checkpoint)
    # A number of layers that is far off is refused before anything is made for each of them.
    checkpoint.require(f"model.layers.{read_num_layers(checkpoint.config) - 1}.input_layernorm.weight")
    options.expect_tensors(len(checkpoint.unread))
    return _FAMILIES[architecture](checkpoint, options)


def check_architecture(checkpoint: Checkpoint) -> str:
    """Its name, if a family serves it; else ModelRefused."""
    names = checkpoint.config.texts("architectures")
    if len(names) != 1 or names[0] not in _FAMILIES:
        raise checkpoint.config.refusal("architectures", f"one of {', '.join(_FAMILIES)}")
    return names[0]
