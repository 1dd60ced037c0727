"""The reference of the API as Markdown: services, messages and enums of one proto package with their comments."""

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from google.protobuf import descriptor_pb2

_Field = descriptor_pb2.FieldDescriptorProto
_SCALARS = {value.number: value.name.removeprefix("TYPE_").lower() for value in descriptor_pb2.FieldDescriptorProto.Type.DESCRIPTOR.values}
_FILE, _PACKAGE, _MESSAGE, _ENUM, _SERVICE, _MEMBER = (), (2,), 4, 5, 6, 2  # paths into a FileDescriptorProto


def read_protos(folder: Path) -> list["ProtoFile"]:
    """Every proto file below `folder`, with its comments."""
    sources = sorted(str(path.relative_to(folder)) for path in folder.rglob("*.proto"))
    with tempfile.TemporaryDirectory() as work:
        out = Path(work) / "protos.binpb"
        arguments = [f"-I{folder}", "--include_source_info", f"--descriptor_set_out={out}", *sources]
        subprocess.run([sys.executable, "-m", "grpc_tools.protoc", *arguments], check=True)
        files = descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes()).file
    return [ProtoFile(file) for file in files]


@dataclass
class ProtoFile:
    """A proto file that renders itself."""

    file: descriptor_pb2.FileDescriptorProto
    _comments: dict[tuple[int, ...], str] = field(init=False)

    def __post_init__(self) -> None:
        locations = self.file.source_code_info.location
        self._comments = {tuple(each.path): each.leading_comments for each in locations if each.leading_comments}

    @property
    def name(self) -> str:
        """The part of the package's name that tells it from the others, such as inference."""
        return self.file.package.split(".")[-2]

    def page(self) -> str:
        """The page."""
        parts = (*self._paragraphs(_PACKAGE), *self._services(), *self._messages(), *self._enums())
        return "\n".join((f"# `{self.file.package}`", "", *parts))

    def _services(self) -> Iterator[str]:
        for index, service in enumerate(self.file.service):
            path = (_SERVICE, index)
            yield from (f"## {service.name}", "", *self._paragraphs(path), "| call | request | answer | |", "|---|---|---|---|")
            for number, method in enumerate(service.method):
                asked, answered = self._link(method.input_type), self._link(method.output_type)
                asked, answered = _streamed(asked, method.client_streaming), _streamed(answered, method.server_streaming)
                yield f"| `{method.name}` | {asked} | {answered} | {self._cell((*path, _MEMBER, number))} |"
            yield ""

    def _messages(self) -> Iterator[str]:
        for index, message in enumerate(self.file.message_type):
            path = (_MESSAGE, index)
            yield from (f"## {message.name}", "", *self._paragraphs(path))
            if message.field:
                yield from ("| field | type | |", "|---|---|---|")
            for number, each in enumerate(message.field):
                yield f"| `{each.name}` = {each.number} | {self._type(message, each)} | {self._cell((*path, _MEMBER, number))} |"
            yield from ("",) if message.field else ()

    def _enums(self) -> Iterator[str]:
        for index, enum in enumerate(self.file.enum_type):
            path = (_ENUM, index)
            yield from (f"## {enum.name}", "", *self._paragraphs(path), "| value | |", "|---|---|")
            yield from (f"| `{each.name}` = {each.number} | {self._cell((*path, 2, at))} |" for at, each in enumerate(enum.value))
            yield ""

    def _type(self, message: descriptor_pb2.DescriptorProto, each: _Field) -> str:
        entry = next((nested for nested in message.nested_type if each.type_name.endswith(f".{message.name}.{nested.name}")), None)
        if entry is not None and entry.options.map_entry:
            return f"map of {self._type(entry, entry.field[0])} to {self._type(entry, entry.field[1])}"
        name = self._link(each.type_name) if each.type_name else _SCALARS[each.type]
        if each.label == _Field.LABEL_REPEATED:
            return f"repeated {name}"
        if each.proto3_optional:
            return f"optional {name}"
        return f"{name}, one of `{message.oneof_decl[each.oneof_index].name}`" if each.HasField("oneof_index") else name

    def _link(self, type_name: str) -> str:
        package, _, name = type_name.removeprefix(".").rpartition(".")
        if package == self.file.package:
            return f"[{name}](#{name.lower()})"
        ours = package.startswith("pypto_serving.")
        return f"[{name}]({package.split('.')[-2]}.md#{name.lower()})" if ours else f"`{package}.{name}`"

    def _paragraphs(self, path: tuple[int, ...]) -> Iterator[str]:
        for paragraph in self._comments.get(path, "").strip("\n").split("\n\n"):
            lines = paragraph.split("\n")
            if any(line.startswith("   ") for line in lines):  # a drawing
                yield from (*(f"    {line.removeprefix(' ')}".rstrip() for line in lines), "")
            elif paragraph.strip():
                yield from (" ".join(line.strip() for line in lines), "")

    def _cell(self, path: tuple[int, ...]) -> str:
        return " ".join(self._comments.get(path, "").split()).replace("|", "\\|").replace("<", "&lt;")


def _streamed(name: str, is_stream: bool) -> str:
    return f"stream of {name}" if is_stream else name
