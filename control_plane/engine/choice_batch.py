"""The choices that get a token in a step: most steps of a worker bring one for the same ones as the step before."""

from collections.abc import Mapping
from dataclasses import dataclass

from control_plane.core.sequence import Sequence
from control_plane.core.step import TokenLogprob
from control_plane.engine.request import FrontEndRequests, LiveChoice, TokenTime


@dataclass(slots=True)
class _Share:
    """What of a batch is one front end's."""

    owner: FrontEndRequests
    places: list[int]  # in the batch
    numbers: list[int]  # of its choices


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
            share = shares.get(id(owner)) or shares.setdefault(id(owner), _Share(owner, [], []))
            share.places.append(place)
            share.numbers.append(choice.number)
        self._shares = list(shares.values())

    def emit(self, token_ids: list[int], logprobs: Mapping[Sequence, TokenLogprob]) -> None:
        """Leave a token of each choice with its front end."""
        for share in self._shares:
            owner = share.owner
            if logprobs:
                first, owned = len(owner.numbers), [self.sequences[place] for place in share.places]
                entries = [(index, logprobs[sequence]) for index, sequence in enumerate(owned, first) if sequence in logprobs]
                owner.outputs.logprobs += entries
            owner.numbers += share.numbers
            owner.token_ids += token_ids if len(share.places) == len(token_ids) else [token_ids[place] for place in share.places]
