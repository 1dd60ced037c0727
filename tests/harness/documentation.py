"""Commands and programs that the documents show, read out of their Markdown."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).parents[2]

#: First words of commands; in running text only what begins with one of them is taken for a command.
PROGRAMS = frozenset({".", "curl", "docker", "grpcurl", "helm", "kubectl", "make", "pip", "pre-commit", "python", "python3"})
#: Beginnings of what reads like a command and is none: names of services, drawings.
_NO_COMMANDS = ("pypto-serving control plane", "pypto-serving worker", "clients ──", "clients ───", "connecting --", "clients/ ")
_DRAWN = frozenset("│─├└┌═╪")


@dataclass(frozen=True)
class Snippet:
    """A command or a Python program, and where it stands."""

    place: str  # file:line
    text: str

    @property
    def variables(self) -> dict[str, str]:
        """What a command puts into the environment."""
        return dict(word.split("=", 1) for word in self._words[: self._num_variables])

    @property
    def words(self) -> list[str]:
        """The rest of a command."""
        return self._words[self._num_variables :]

    @property
    def _words(self) -> list[str]:
        return shlex.split(re.sub(r"<[^>]*>", "PLACEHOLDER", self.text), comments=True)

    @property
    def _num_variables(self) -> int:
        return next((index for index, word in enumerate(self._words) if not re.match(r"[A-Z_]+=", word)), len(self._words))


def _is_command(span: str) -> bool:
    return " " in span and is_program(span.split()[0]) and not span.startswith(_NO_COMMANDS)


def is_program(word: str) -> bool:
    """Whether commands begin with it."""
    return word in PROGRAMS or word.startswith("pypto-serving")


def documents() -> list[Path]:
    """What says how things are today; not what is generated."""
    return sorted({*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")} - {ROOT / "CHANGELOG.md"})


def commands(path: Path) -> list[Snippet]:
    """The commands in blocks and in running text; raises AssertionError for a block of which it cannot be told whether it is one."""
    found = []
    for place, text in _blocks(path):
        if not _is_python(text):
            found += [Snippet(f"{place}+{number}", line) for number, line in _command_lines(place, text)]
    return found + [Snippet(place, text) for place, text in _spans(path) if _is_command(text)]


def programs(path: Path) -> list[Snippet]:
    """The Python programs."""
    return [Snippet(place, text) for place, text in _blocks(path) if _is_python(text)]


def spans(path: Path) -> list[Snippet]:
    """Everything in running text that is set as code."""
    return [Snippet(place, text) for place, text in _spans(path)]


def _is_python(block: str) -> bool:
    return block.startswith(("from ", "import "))


def _command_lines(place: str, block: str) -> Iterator[tuple[int, str]]:
    first = block.split(maxsplit=1)[0]
    if block.startswith(_NO_COMMANDS) or _DRAWN & set(block) or not re.fullmatch(r"[a-z.][a-z0-9._-]*|[A-Z_]+=\S*", first):
        return
    for number, line in enumerate(re.sub(r"\\\n *", "", block).splitlines()):
        if line.strip() and not line.lstrip().startswith("#"):
            word = next(word for word in line.split() if not re.match(r"[A-Z_]+=", word))
            assert is_program(word), f"{place}: {line!r} is no command that is known; see PROGRAMS and _NO_COMMANDS in {__file__}"
            yield number, line


def _blocks(path: Path) -> Iterator[tuple[str, str]]:
    for token in _tokens(path):
        if token.type in ("code_block", "fence") and token.content.strip():
            yield _place(path, token), token.content


def _spans(path: Path) -> Iterator[tuple[str, str]]:
    for token in _tokens(path):
        for child in token.children or ():
            if child.type == "code_inline" and child.content.strip():
                yield _place(path, token), child.content


def _tokens(path: Path) -> list[Token]:
    return MarkdownIt("commonmark").enable("table").parse(path.read_text(encoding="utf-8"))


def _place(path: Path, token: Token) -> str:
    return f"{path.relative_to(ROOT)}:{token.map[0] + 1 if token.map else '?'}"
