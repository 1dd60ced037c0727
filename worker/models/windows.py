"""Which layers of the Qwen families look back over a window only."""

from worker.checkpoint.config_fields import ConfigFields

_FULL, _SLIDING = "full_attention", "sliding_attention"
_DEFAULT_WINDOW, _DEFAULT_FULL_LAYERS = 4096, 28


def read_layer_windows(config: ConfigFields, num_layers: int) -> list[int | None]:
    """The window of every layer: by `layer_types` where given, else of all layers from `max_window_layers` on."""
    if not config.flag("use_sliding_window", default=False):
        if _SLIDING in config.texts("layer_types"):
            raise config.refusal("use_sliding_window", f"true, as layer_types holds {_SLIDING!r}")
        return [None] * num_layers
    window = config.integer("sliding_window", _DEFAULT_WINDOW)
    return [window if kind == _SLIDING else None for kind in _read_layer_types(config, num_layers)]


def read_common_window(config: ConfigFields) -> int | None:
    """The window of a family in which it holds for all layers alike."""
    return config.integer("sliding_window", _DEFAULT_WINDOW) if config.flag("use_sliding_window", default=False) else None


def _read_layer_types(config: ConfigFields, num_layers: int) -> list[str]:
    kinds = config.texts("layer_types")
    if not kinds:
        num_full = min(num_layers, config.integer("max_window_layers", _DEFAULT_FULL_LAYERS, minimum=0))
        return [_FULL] * num_full + [_SLIDING] * (num_layers - num_full)
    if len(kinds) != num_layers or set(kinds) - {_FULL, _SLIDING}:
        raise config.refusal("layer_types", f"{num_layers} entries of {_FULL!r} or {_SLIDING!r}")
    return kinds
