"""Changes that make a legal session of the worker protocol an illegal one, or another legal one. Any message, any field."""

from collections.abc import Iterator
from random import Random
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from pypto_serving.wire.columns import pack_ids

_UINT32 = [31, 32, 33, 63, 64, 65, 1023, 1024, 2**16, 2**31 - 1, 2**31, 2**32 - 2, 2**32 - 1]
_UINT64 = [2**31, 2**32, 2**63 - 1, 2**63, 2**64 - 2, 2**64 - 1]
_FLOATS = [0.0, -0.0, 0.5, 1.0, -1.0, 2.0, 1e-45, 1e38, -1e38, float("inf"), float("-inf"), float("nan")]
_STRINGS = ["", "x", "é\n", "\x00", "x" * 256, "x" * 257, "y" * 100_000]
_MILLION = 1_000_000

#: Unsigned numbers: telling values, and the first that is none.
_NUMBERS = {
    FieldDescriptor.TYPE_UINT32: (_UINT32, 2**32),
    FieldDescriptor.TYPE_UINT64: (_UINT64, 2**64),
    FieldDescriptor.TYPE_FIXED64: (_UINT64, 2**64),
}

#: Values of the remaining types, whatever stood there before.
_CHOICES: dict[int, list[Any]] = {
    FieldDescriptor.TYPE_INT32: [0, 1, -1, 2**31 - 1, -(2**31)],
    FieldDescriptor.TYPE_ENUM: [0, 1, 2, 99],
    FieldDescriptor.TYPE_FLOAT: _FLOATS,
    FieldDescriptor.TYPE_STRING: _STRINGS,
}


def mutate_one(random: Random, message: Message, spared: frozenset[str] = frozenset()) -> None:
    """Change one field somewhere in `message`; fields named in `spared` stay as they are."""
    owner, field = random.choice([place for place in _places(message) if place[1].name not in spared])
    if field.is_repeated:
        _mutate_repeated(random, owner, field)
    elif field.type == FieldDescriptor.TYPE_MESSAGE:
        _mutate_message(random, owner, field)
    else:
        setattr(owner, field.name, _scalar(random, field, getattr(owner, field.name)))


def mutate_order(random: Random, items: list[Any]) -> None:
    """Drop, repeat, swap or move an item."""
    index, other = random.randrange(len(items)), random.randrange(len(items))
    change = random.choice(["drop", "repeat", "swap", "move"])
    if change == "drop":
        del items[index]
    elif change == "repeat":
        items.insert(other, items[index])
    elif change == "swap":
        items[index], items[other] = items[other], items[index]
    else:
        items.insert(other, items.pop(index))


def _places(message: Message) -> Iterator[tuple[Message, Any]]:
    """Every field of `message` and of the messages in it."""
    for field in message.DESCRIPTOR.fields:
        yield message, field
        if field.type != FieldDescriptor.TYPE_MESSAGE:
            continue
        if field.is_repeated:
            for part in getattr(message, field.name):
                yield from _places(part)
        elif message.HasField(field.name):
            yield from _places(getattr(message, field.name))


def _mutate_repeated(random: Random, owner: Message, field: FieldDescriptor) -> None:
    parts = getattr(owner, field.name)
    copies = list(parts)
    change = random.choice(["clear", "add", "repeat", "reverse", "flood"])
    del parts[:]
    if change == "add":
        parts.extend([*copies, _empty_part(field)])
    elif change == "repeat":
        parts.extend(copies * 2)
    elif change == "reverse":
        parts.extend(reversed(copies))
    elif change == "flood":
        parts.extend((copies or [_empty_part(field)]) * 3000)


def _empty_part(field: FieldDescriptor) -> Any:
    return GetMessageClass(field.message_type)() if field.message_type else ""


def _mutate_message(random: Random, owner: Message, field: FieldDescriptor) -> None:
    if owner.HasField(field.name) and random.random() < 0.5:
        owner.ClearField(field.name)
    else:
        getattr(owner, field.name).SetInParent()  # in a oneof, it takes the place of the other


def _scalar(random: Random, field: FieldDescriptor, value: Any) -> Any:
    if field.type in _NUMBERS:
        extremes, end = _NUMBERS[field.type]
        return random.choice([_number(random, extremes), (value + 1) % end, (value - 1) % end])
    if field.type == FieldDescriptor.TYPE_BOOL:
        return not value
    if field.type == FieldDescriptor.TYPE_BYTES:
        return random.choice([b"", value + b"\x01", value[:-1], value * 2, value[:4], value[4:], *[_column(random, value)] * 6])
    assert field.type in _CHOICES, f"{field.full_name} has a type that the protocol did not have: {field.type}"
    return random.choice(_CHOICES[field.type])


def _number(random: Random, extremes: list[int]) -> int:
    """Half of them small: a lane, a group, a page, a step that may well be legal."""
    return random.randint(0, 12) if random.random() < 0.5 else random.choice(extremes)


def _column(random: Random, value: bytes) -> bytes:
    """A column with other entries, or with a million of them."""
    number = _number(random, _UINT32)
    if random.random() < 0.05:
        return pack_ids([number]) * _MILLION
    entries = len(value) // 4
    if not entries or random.random() < 0.5:
        return pack_ids([_number(random, _UINT32) for _ in range(random.randint(0, 4))])
    place = 4 * random.randrange(entries)
    return value[:place] + pack_ids([number]) + value[place + 4 :]
