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
    match field.type:
        case FieldDescriptor.TYPE_UINT32:
            return random.choice([_number(random, _UINT32), (value + 1) % 2**32, (value - 1) % 2**32])
        case FieldDescriptor.TYPE_UINT64 | FieldDescriptor.TYPE_FIXED64:
            return random.choice([_number(random, _UINT64), (value + 1) % 2**64, (value - 1) % 2**64])
        case FieldDescriptor.TYPE_INT32:
            return random.choice([0, 1, -1, 2**31 - 1, -(2**31)])
        case FieldDescriptor.TYPE_ENUM:
            return random.choice([0, 1, 2, 99])
        case FieldDescriptor.TYPE_FLOAT:
            return random.choice(_FLOATS)
        case FieldDescriptor.TYPE_BOOL:
            return not value
        case FieldDescriptor.TYPE_STRING:
            return random.choice(_STRINGS)
        case FieldDescriptor.TYPE_BYTES:
            return random.choice([b"", value + b"\x01", value[:-1], value * 2, value[:4], value[4:], *[_column(random, value)] * 6])
        case kind:
            raise AssertionError(f"{field.full_name} has a type that the protocol did not have: {kind}")


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
