"""The answers of `batch`: one JSON object a line, in a file that a later call continues."""

import fcntl
import json
import os
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, BinaryIO, Self

from clients.cli.command import UsageError, writes
from clients.cli.prompts_file import PromptId

if TYPE_CHECKING:
    from clients.errors import ServingError
    from clients.results import Completion

#: Of every line that is written.
_BEGINNING = b'{"id": '


class Answers:
    """A context manager. On entry it takes what failed, and a last line that was not written to its end, out of the file.

    `ids` are those of the answers that were there. Raises UsageError for a file that is not ours, or that another process writes, and
    OutputFailed for what cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self._path = path.resolve()
        self.ids: set[PromptId] = set()

    def __enter__(self) -> Self:
        if self._path.exists() and not self._path.is_file():
            raise UsageError(f"--output: {self._path} is no file that could be continued")
        try:
            self._file = _locked(self._path)
            try:
                self._keep_answers()
            except BaseException:
                self._file.close()
                raise
        except OSError as error:
            raise UsageError(f"--output: {self._path}: {error.strerror}") from None
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self._file.close()

    def add_answer(self, prompt_id: PromptId, completion: "Completion") -> None:
        """Write an answer."""
        answer = {"request_id": completion.request_id, "model": completion.started.model, "seed": completion.started.seed}
        if completion.prompt_logprobs:
            answer["prompt_logprobs"] = list(map(asdict, completion.prompt_logprobs))
        self._write(id=prompt_id, **answer, choices=list(map(asdict, completion.choices)), usage=asdict(completion.usage))

    def add_error(self, prompt_id: PromptId, error: "ServingError") -> None:
        """Write why there is no answer."""
        self._write(id=prompt_id, request_id=error.request_id, error={"code": error.code.name, "message": error.message})

    def _write(self, **entry: Any) -> None:
        # In one write, so that a line is torn only where the machine stops, or its disk is full.
        with writes("--output", self._path):
            self._file.write(json.dumps(entry, default=list, ensure_ascii=False).encode(errors="backslashreplace") + b"\n")

    def _keep_answers(self) -> None:
        if sum(map(len, self._answers())) == self._path.stat().st_size:
            return
        beside = self._path.with_name(self._path.name + ".continued")
        with self._file, _locked(beside, truncate=True) as copy:
            for line in self._answers():
                copy.write(line)
            os.fsync(copy.fileno())
            beside.replace(self._path)
            self._file = os.fdopen(os.dup(copy.fileno()), "ab", buffering=0)

    def _answers(self) -> Iterator[bytes]:
        """Lines with answers."""
        with self._path.open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                entry = _parse(line)
                is_torn = entry is None and not line.endswith(b"\n") and line.startswith(_BEGINNING)
                if not is_torn and not _is_ours(entry):
                    raise UsageError(f"--output: {self._path}:{number}: is no line of this command; choose another file")
                if isinstance(entry, dict) and "error" not in entry and line.endswith(b"\n"):
                    self.ids.add(entry["id"])
                    yield line


def _parse(line: bytes) -> object:
    try:
        return json.loads(line)
    except ValueError:
        return None


def _is_ours(entry: object) -> bool:
    """Whether it is what this command writes: nothing else is taken for an answer, or out of a file."""
    return isinstance(entry, dict) and {"id", "request_id"} <= entry.keys() and ("choices" in entry or "error" in entry)


def _locked(path: Path, truncate: bool = False) -> BinaryIO:
    """Open for appending, for us alone."""
    file = path.open("ab", buffering=0)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise UsageError(f"--output: another process writes to {path}") from None
    if truncate:
        file.truncate(0)
    return file
