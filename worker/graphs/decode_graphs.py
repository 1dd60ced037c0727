"""Captured forwards of decode steps."""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from worker.cache.kv_cache import KVCache
from worker.graphs.shapes import GraphShape
from worker.graphs.static_batch import StaticBatch
from worker.lanes.batch import Batch, BatchColumns, Hidden

_log = logging.getLogger(__name__)

#: Runs a launch once to load what it needs, records it, and returns what replays it: a call that always returns the same tensors.
Capture = Callable[[Callable[[], Hidden]], Callable[[], Hidden]]

#: A model's forward that has no word with the host in between.
Forward = Callable[[Batch, KVCache], Hidden]


@dataclass(frozen=True, slots=True)
class _Graph:
    shape: GraphShape
    static: StaticBatch
    replay: Callable[[], Hidden]

    def fits(self, columns: BatchColumns) -> bool:
        return len(columns.token_ids) <= self.shape.rows and columns.max_tokens <= self.shape.max_tokens


class DecodeGraphs:
    """One graph for each of some shapes, given smallest first."""

    def __init__(self, forward: Forward, cache: KVCache, shapes: Sequence[GraphShape], capture: Capture) -> None:
        self._forward = forward
        self._cache = cache
        self._shapes = shapes
        self._capture = capture
        self._graphs: list[_Graph] = []

    def capture(self) -> None:
        """Capture all shapes, the largest first: what it needs of the graphs' common memory serves the others.

        Raises RuntimeError naming the shape that can not be captured.
        """
        for shape in reversed(self._shapes):
            begin = time.monotonic()
            try:
                self._graphs.insert(0, self._capture_shape(shape))
            except RuntimeError as error:
                room = f"{shape.rows} rows and {shape.max_tokens} tokens"
                raise RuntimeError(f"a graph for {room} can not be captured (--eager does without): {error}") from error
            seconds = round(time.monotonic() - begin, 2)
            _log.info("captured", extra={"rows": shape.rows, "max_tokens": shape.max_tokens, "seconds": seconds})

    def forward(self, columns: BatchColumns) -> Hidden | None:
        """The rows of a decode step that a graph has room for, padded, until the next call; None for all other steps."""
        graph = next((graph for graph in self._graphs if graph.fits(columns)), None) if columns.is_decode else None
        if graph is None:
            return None
        graph.static.load(columns)
        return graph.replay()

    def _capture_shape(self, shape: GraphShape) -> _Graph:
        static = StaticBatch(shape, self._cache)
        return _Graph(shape, static, self._capture(partial(self._forward, static.batch, self._cache)))
