"""Output that piles up takes little memory: the deltas of each choice become one."""

from array import array
from collections import Counter
from collections.abc import Iterable

from control_plane.engine.ports import Output, SequenceDelta

#: No message of a stream can be smaller than what has been joined.
MAX_JOINED = 64


def joined(outputs: Iterable[Output]) -> list[Output]:
    """The same output with few deltas, each of at most `MAX_JOINED` tokens.

    That of one choice stays in order, and tokens of other numerics stay apart.
    """
    done: list[Output] = []
    open_deltas: dict[int, list[SequenceDelta]] = {}
    num_tokens: Counter[int] = Counter()  # of the open ones, by choice
    for output in outputs:
        if not isinstance(output, SequenceDelta):
            done += _close(open_deltas)
            num_tokens.clear()
            done.append(output)
            continue
        deltas = open_deltas.setdefault(output.choice, [])
        if deltas and (deltas[-1].numerics_id != output.numerics_id or num_tokens[output.choice] + len(output.token_ids) > MAX_JOINED):
            done.append(_join(deltas))
            deltas.clear()
            num_tokens[output.choice] = 0
        deltas.append(output)
        num_tokens[output.choice] += len(output.token_ids)
    return done + _close(open_deltas)


def _close(open_deltas: dict[int, list[SequenceDelta]]) -> list[Output]:
    closed: list[Output] = [_join(deltas) for deltas in open_deltas.values()]
    open_deltas.clear()
    return closed


def _join(deltas: list[SequenceDelta]) -> SequenceDelta:
    if len(deltas) == 1:
        return deltas[0]
    first = deltas[0]
    return SequenceDelta(
        request_id=first.request_id,
        choice=first.choice,
        first_index=first.first_index,
        token_ids=array("I", [token_id for delta in deltas for token_id in delta.token_ids]),
        text="".join([delta.text for delta in deltas]),
        logprobs=tuple([entry for delta in deltas for entry in delta.logprobs]),
        numerics_id=first.numerics_id,
    )
