"""The choices that get a token in a step: most steps of a worker bring one for the same ones as the step before."""

from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field

from control_plane.core.sequence import Sequence
from control_plane.core.step import TokenLogprob, ids
from control_plane.engine.request import FrontEndRequests, LiveChoice, TokenTime


@dataclass(slots=True)
class _Share:
    """What of a batch is one front end's."""

    owner: FrontEndRequests
    places: list[int] = field(default_factory=list)  # in the batch
    numbers: "array[int]" = field(default_factory=ids)  # of its choices


class ChoiceBatch:
    """Hands the tokens of a step out as columns. The choices of a batch have got their last tokens at the same time."""

    def __init__(self, sequences: list[Sequence], choices: list[LiveChoice], numerics_id: str) -> None:
        self.sequences = sequences
        self.choices = choices
        self.numerics_id = numerics_id
        self.time = TokenTime()
        shares: dict[int, _Share] = {}
        for place, choice in enumerate(choices):
            choice.last_token = self.time
            owner = choice.owner
            share = shares.get(id(owner)) or shares.setdefault(id(owner), _Share(owner))
            share.places.append(place)
            share.numbers.append(choice.number)
        self._shares = list(shares.values())

    def emit(self, token_ids: list[int], logprobs: Mapping[Sequence, TokenLogprob]) -> None:
        """Leave a token of each choice with its front end."""
        for share in self._shares:
            outputs = share.owner.outputs
            if logprobs:
                first, owned = len(outputs.numbers), [self.sequences[place] for place in share.places]
                outputs.logprobs += [(index, logprobs[sequence]) for index, sequence in enumerate(owned, first) if sequence in logprobs]
            outputs.numbers += share.numbers
            is_whole = len(share.places) == len(token_ids)
            outputs.token_ids.fromlist(token_ids if is_whole else [token_ids[place] for place in share.places])
