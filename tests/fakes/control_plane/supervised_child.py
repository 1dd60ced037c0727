"""A child of a supervisor that does what the words in a file say, one for each life: serve, wait, hang, stay, drain, mute, die and a code.

    python supervised_child.py NAME DIRECTORY [FLAG...]

DIRECTORY/NAME has the words; when they are used up, it serves. What happens is appended to DIRECTORY/log.
"""

import contextlib
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path


class SupervisedChild:
    """Lives until a signal, or the end of its supervisor."""

    def __init__(self, name: str, directory: Path) -> None:
        self.name = name
        self.directory = directory
        self.word = self._next_word()

    def run(self, flags: list[str]) -> None:
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._handle)
        threading.Thread(target=self._watch_parent, daemon=True).start()
        self._note(f"started {os.getpid()} {' '.join(flags)}".rstrip())
        if self.word.startswith("die"):
            print(f"{self.name} cannot start", file=sys.stderr)
            sys.exit(int(self.word.removeprefix("die")))
        if self.word not in ("wait", "hang"):
            print(json.dumps({"serving": {"ports": {self.name: 7}, self.name: "somewhere"}}), flush=True)
            self._note("serving")
        if self.word == "drain":
            print(json.dumps({"draining": True}), flush=True)
        while True:
            time.sleep(0.05)
            if self.word not in ("mute", "hang"):
                with contextlib.suppress(BrokenPipeError):  # the supervisor is gone
                    os.write(sys.stdout.fileno(), b'{"well": true}\n')

    def _next_word(self) -> str:
        file = self.directory / self.name
        words = file.read_text().split() if file.exists() else []
        file.write_text("\n".join(words[1:]))
        return words[0] if words else "serve"

    def _note(self, event: str) -> None:
        with (self.directory / "log").open("a") as log:
            log.write(f"{self.name} {event}\n")

    def _watch_parent(self) -> None:
        sys.stdin.read()
        self._note("orphaned")
        os._exit(0)

    def _handle(self, number: int, frame: object) -> None:
        self._note(signal.Signals(number).name)
        if number != signal.SIGHUP and self.word != "stay":
            os._exit(0)


if __name__ == "__main__":
    SupervisedChild(sys.argv[1], Path(sys.argv[2])).run(sys.argv[3:])
