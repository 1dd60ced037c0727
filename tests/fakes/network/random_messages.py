"""Random changes to valid messages, from their descriptors: a field that is new tomorrow is changed tomorrow."""

from collections.abc import Mapping, Sequence
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from hypothesis import strategies as st

#: Values of each type, on both sides of every limit that anything may have.
_FLOATS = [0.0, -0.0, 1.0, 0.5, -1.0, 2.0, -2.0, 2.1, 1e-12, 1e-5, 1e-45, 3.4e38, 1e6, 100.0, -100.0, 101.0, 1.0001]
_FLOATS += [float("nan"), float("inf"), float("-inf")]
_COUNTS = [0, 1, 2, 3, 20, 21, 63, 64, 65, 128, 256, 257, 319, 320, 321, 1024, 1025, 2**31 - 1, 2**31, 2**32 - 1]
_SIGNED = [0, 1, -1, 2**31 - 1, -(2**31)]
_TEXTS = ["", "a", "\0", "a\0b", "\n", "\ud7ff\ue000", "\ufffd", "\ufeff", "\u202e", "e\u0301", "模型🙂", "{{ 7 * 7 }}", "<eos>", "<bos>"]
_LONG_TEXTS = [("é", 129), ("a", 257), ("a", 1025), ("🙂", 300), ("x", 70_000), ("[", 500)]
_LONG = st.sampled_from(_LONG_TEXTS).map(lambda of: of[0] * of[1])
_BYTES = [b"", b"k", b"\xff\xfe", b"k" * 64, b"k" * 65, b"k" * 5000]
_SIZES = [0, 1, 2, 3, 21, 65, 129, 257, 1025]

_SCALARS: Mapping[int, st.SearchStrategy[Any]] = {
    FieldDescriptor.TYPE_FLOAT: st.sampled_from(_FLOATS) | st.floats(width=32),
    FieldDescriptor.TYPE_DOUBLE: st.sampled_from([*_FLOATS, 1e308]) | st.floats(),
    FieldDescriptor.TYPE_UINT32: st.sampled_from(_COUNTS) | st.integers(0, 400),
    FieldDescriptor.TYPE_UINT64: st.sampled_from([*_COUNTS, 2**63 - 1, 2**64 - 1]),
    FieldDescriptor.TYPE_INT32: st.sampled_from(_SIGNED) | st.integers(-5, 400),
    FieldDescriptor.TYPE_INT64: st.sampled_from([*_SIGNED, 2**63 - 1, -(2**63)]),
    FieldDescriptor.TYPE_BOOL: st.booleans(),
    FieldDescriptor.TYPE_STRING: st.sampled_from(_TEXTS)
    | st.text(max_size=12)
    | st.sampled_from(_LONG_TEXTS).map(lambda of: of[0] * of[1]),
    FieldDescriptor.TYPE_BYTES: st.sampled_from(_BYTES) | st.binary(max_size=70),
    FieldDescriptor.TYPE_ENUM: st.integers(0, 5) | st.sampled_from([-1, 99, 2**31 - 1]),
}


Path = tuple[FieldDescriptor, ...]
Values = Mapping[str, Sequence[Any]]


def changed(bases: Sequence[Message], values: Values, max_changes: int = 5) -> st.SearchStrategy[Any]:
    """One of `bases` after some changes. `values` are further ones for fields, by "Message.field"; only those where there is None too."""
    every = _paths(bases[0].DESCRIPTOR)

    @st.composite
    def message(draw: st.DrawFn) -> Message:
        base = bases[draw(st.integers(0, len(bases) - 1))]
        copy = type(base)()
        copy.CopyFrom(base)
        # Most changes are made to what is there: anything else is often refused for being there at all.
        present = [path for path in every if path[0].is_repeated or path[0].message_type is None or base.HasField(path[0].name)]
        for _ in range(draw(st.integers(0, max_changes))):
            paths = every if draw(st.integers(0, 7)) == 0 else present
            _change(draw, copy, paths[draw(st.integers(0, len(paths) - 1))], values)
        return copy

    return message()


def _paths(descriptor: Any, max_depth: int = 6) -> list[Path]:
    """The way to every field, and to every field of messages in fields."""
    paths: list[Path] = []
    for field in descriptor.fields if max_depth else ():
        paths.append((field,))
        if field.message_type is not None and not _is_map(field):
            paths += [(field, *path) for path in _paths(field.message_type, max_depth - 1)]
    return paths


def _is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and bool(field.message_type.GetOptions().map_entry)


def _change(draw: st.DrawFn, message: Message, path: Path, values: Values) -> None:
    field, *rest = path
    if rest:
        inner: Any = getattr(message, field.name)
        if field.is_repeated:
            inner = inner[draw(st.integers(0, len(inner) - 1))] if len(inner) and draw(st.booleans()) else inner.add()
        else:
            inner.SetInParent()
        _change(draw, inner, tuple(rest), values)
    elif draw(st.integers(0, 7)) == 0:
        message.ClearField(field.name)
    elif field.is_repeated:
        _change_many(draw, getattr(message, field.name), field, values)
    elif field.message_type is not None:
        getattr(message, field.name).SetInParent()
    else:
        setattr(message, field.name, draw(_scalar(field, values)))


def _change_many(draw: st.DrawFn, many: Any, field: FieldDescriptor, values: Values) -> None:
    size = draw(st.sampled_from(_SIZES) if draw(st.integers(0, 7)) == 0 else st.integers(0, 3))
    if _is_map(field):
        entry: Any = field.message_type
        key, value = (entry.fields_by_name[name] for name in ("key", "value"))
        for index in range(size):
            _put(draw, many, draw(_scalar(key, values)) if index < 3 else _numbered(key, index), value, values)
    elif field.message_type is not None:
        many.extend([many[0] if many else many.add() for _ in range(size)])
    else:
        few = [draw(_scalar(field, values)) for _ in range(min(size, 3))]
        short = [value for value in few if not isinstance(value, str) or len(value) < 2000]  # or the message gets too large to be looked at
        many.extend((short * size)[:size] if size > 3 else few)


def _put(draw: st.DrawFn, many: Any, key: Any, value: FieldDescriptor, values: Values) -> None:
    if value.message_type is None:
        many[key] = draw(_scalar(value, values))
    else:
        paths = _paths(value.message_type)
        _change(draw, many[key], paths[draw(st.integers(0, len(paths) - 1))], values)


def _numbered(key: FieldDescriptor, index: int) -> Any:
    return f"key{index}" if key.type == FieldDescriptor.TYPE_STRING else index


def _scalar(field: FieldDescriptor, values: Values) -> st.SearchStrategy[Any]:
    of_type = _SCALARS[field.type]
    message: Any = field.containing_type
    known = values.get(f"{message.name}.{field.name}")
    if known is None:
        return of_type
    usual = st.sampled_from([value for value in known if value is not None])
    return usual if None in known else usual | usual | of_type
