"""The output of one choice on its way to its call: token ids in columns, made into text many at a time."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace

from control_plane.core.step import TokenLogprob, ids
from control_plane.edge.text.text_stream import SequenceTextStream
from control_plane.engine.ports import FinishReason, SequenceFinished


@dataclass(slots=True)  # not frozen: there are many
class Delta:
    """Consecutive tokens of a choice, made under one numerics id, and the text that may be shown with them."""

    choice: int
    first_index: int
    token_ids: Sequence[int]
    text: str
    logprobs: Sequence[TokenLogprob] = ()
    numerics_id: str = ""  # empty: that of the delta before


@dataclass(frozen=True, slots=True)
class ChoiceEnd:
    """How a choice ended: what the engine says, and the stop string that was found in the text."""

    choice: int
    finished: SequenceFinished
    stop_string: str | None = None


class ChoiceOutput:
    """What has come for one choice and is not taken; `first_index` is that of the next token to be taken. Used on one thread at a time.

    Text is made when tokens are taken, but for that with stop strings: `look` makes it at once, token by token. What comes after a stop
    string is dropped, whatever the engine has made of it.
    """

    __slots__ = (
        "_finished",
        "_is_told",
        "_num_until_stop",
        "_numerics",
        "_numerics_told",
        "_shown",
        "_text",
        "first_index",
        "index",
        "logprobs",
        "number",
        "token_ids",
    )

    def __init__(self, index: int, number: int, text: SequenceTextStream) -> None:
        """`number`: by which the engine names it."""
        self.index = index
        self.number = number
        self.first_index = 0
        self.token_ids: array[int] = ids()
        self.logprobs: list[TokenLogprob] = []  # of each token, or of none
        self._text = text
        self._shown: list[str] = []  # with stop strings: what each of the tokens lets be shown
        self._num_until_stop: int | None = None  # tokens of the choice up to the one that completed a stop string
        self._numerics: list[tuple[int, str]] = []  # from which index on tokens are made under which numerics id
        self._numerics_told = ""
        self._finished: SequenceFinished | None = None
        self._is_told = False

    @property
    def has_stops(self) -> bool:
        """Whether `look` is to be called whenever tokens have come."""
        return self._text.has_stops

    @property
    def is_finished(self) -> bool:
        """Whether nothing more will come."""
        return self._finished is not None

    @property
    def end(self) -> SequenceFinished | None:
        """What the engine says of its end, once it has come."""
        return self._finished

    @property
    def num_tokens(self) -> int:
        """Its tokens so far, those included that its client had before."""
        return self.first_index + len(self.token_ids)

    @property
    def is_stopped(self) -> bool:
        """Whether a stop string was found."""
        return self._num_until_stop is not None

    def replay(self, token_id: int) -> None:
        """Take a token that its client has already."""
        self._text.push(token_id)
        self.first_index += 1
        if self._text.matched_stop is not None:
            self._num_until_stop = self.first_index

    def change_numerics(self, numerics_id: str) -> None:
        """Note under which numerics id the tokens are made that come from here on."""
        self._numerics.append((self.first_index + len(self.token_ids), numerics_id))

    def look(self) -> bool:
        """Look for a stop string in the tokens that have come; returns whether one was found: once."""
        was_stopped = self.is_stopped
        for token_id in () if was_stopped else self.token_ids[len(self._shown) :]:
            self._shown.append(self._text.push(token_id))
            if self._text.matched_stop is not None:
                self._num_until_stop = self.first_index + len(self._shown)
                break
        del self.token_ids[len(self._shown) :], self.logprobs[len(self._shown) :]
        return self.is_stopped and not was_stopped

    def finish(self, finished: SequenceFinished) -> None:
        """Nothing more will come; it may have gone on for some tokens after a stop string."""
        self._finished = finished

    def take(self, min_tokens: int, max_tokens: int) -> Delta | None:
        """The next tokens, at most `max_tokens`; None while there are not even `min_tokens` and more may come to join them."""
        num_pending = len(self.token_ids)
        count = min(num_pending, max_tokens)
        if len(self._numerics) > 1:
            count = min(count, self._num_of_one_numerics())
        if count < min_tokens and count == num_pending and self._finished is None:
            return None
        token_ids = self.token_ids[:count]
        text = self._take_text(count) if self._text.has_stops else self._text.push_all(token_ids)
        if self._finished is not None and count == num_pending:
            text += self._text.finish()
        if not count and not text:
            return None
        delta = Delta(self.index, self.first_index, token_ids, text, self.logprobs[:count], self._tell_numerics())
        del self.token_ids[:count], self.logprobs[:count]
        self.first_index += count
        return delta

    def take_end(self) -> ChoiceEnd | None:
        """How the choice ended, once, when its last token has been taken."""
        if self._finished is None or self.token_ids or self._is_told:
            return None
        self._is_told = True
        return ChoiceEnd(self.index, self._finished) if self._has_engines_end() else self._end_of_text()

    def _has_engines_end(self) -> bool:
        """Whether the engine knows the reason. An end token that completes a stop string, too, counts as an end token."""
        assert self._finished is not None
        is_end_token = self._finished.end_token_id is not None
        return not self.is_stopped or (is_end_token and self._finished.num_generated_tokens == self._num_until_stop)

    def _end_of_text(self) -> ChoiceEnd:
        assert self._finished is not None and self._num_until_stop is not None
        finished = replace(self._finished, reason=FinishReason.STOP, end_token_id=None, num_generated_tokens=self._num_until_stop)
        return ChoiceEnd(self.index, finished, self._text.matched_stop)

    def _take_text(self, count: int) -> str:
        text = "".join(self._shown[:count])
        del self._shown[:count]
        return text

    def _num_of_one_numerics(self) -> int:
        """How many of the next tokens are made under one numerics id."""
        changes = self._numerics
        while len(changes) > 1 and changes[1][0] <= self.first_index:
            del changes[0]
        return changes[1][0] - self.first_index if len(changes) > 1 else len(self.token_ids)

    def _tell_numerics(self) -> str:
        numerics_id = self._numerics[0][1] if self._numerics else ""
        if numerics_id == self._numerics_told:
            return ""
        self._numerics_told = numerics_id
        return numerics_id
