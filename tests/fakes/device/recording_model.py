"""A model that keeps what its tokens are drawn from."""

from collections import deque

from torch import Tensor

from worker.batch import Batch, Hidden
from worker.kv_cache import KVCache
from worker.models.model import ForwardModel
from worker.step import StepResult


class RecordingModel:
    """Another model, with its cache and the logits that the sampler saw, by lane.

    `observe` has to see every output of the runner; all lanes that sample draw, and nobody asks about a prompt.
    """

    cache: KVCache

    def __init__(self, model: ForwardModel) -> None:
        self._model = model
        self.clear()

    def clear(self) -> None:
        """Forget what was recorded."""
        self.drawn_from: dict[int, list[Tensor]] = {}
        self._launched: deque[Tensor] = deque()

    def forward(self, batch: Batch, cache: KVCache) -> Hidden:
        """As the model does."""
        self.cache = cache
        return self._model.forward(batch, cache)

    def logits(self, rows: Tensor) -> Tensor:
        """As the model does."""
        self._launched.append(self._model.logits(rows))
        return self._launched[-1]

    def observe(self, output: StepResult) -> None:
        """Keep a row of the logits that its step launched for each lane that drew."""
        if len(output.lanes):
            logits = self._launched.popleft()
            for row, lane in enumerate(output.lanes.tolist()):
                self.drawn_from.setdefault(lane, []).append(logits[row].cpu())
