"""A supervisor over processes that only say what they would do."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from fakes.control_plane import supervised_child

PROGRAM = """
    import logging, sys
    from control_plane.edge.supervisor.child import Child
    from control_plane.edge.supervisor.supervisor import SilenceLimits, Supervisor
    logging.basicConfig(level="INFO", format="%(message)s")
    def child(name):
        return Child(name, [sys.executable, CHILD, name, DIRECTORY], again=["again"])
    front_ends = [child(f"f{number}") for number in range(2)]
    sys.exit(Supervisor(child("scheduler"), front_ends, drain_seconds=30.0, limits=SilenceLimits(*SILENCE)).run())
"""


class Supervised:
    """A supervisor process, and the log of its children."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        (directory / "log").touch()
        self.process: subprocess.Popen[str]

    def says(self, name: str, *words: str) -> None:
        (self.directory / name).write_text("\n".join(words))

    def start(self, silence_seconds: tuple[float, float] = (60.0, 60.0)) -> None:
        """`silence_seconds`: for which children may say nothing, when they serve and before."""
        given = {"CHILD": supervised_child.__file__, "DIRECTORY": str(self.directory), "SILENCE": silence_seconds}
        code = textwrap.dedent(PROGRAM)
        for name, value in given.items():
            code = code.replace(name, repr(value))
        self.process = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True)

    @property
    def log(self) -> list[str]:
        return (self.directory / "log").read_text().splitlines()

    def wait_for(self, *events: str) -> None:
        """Wait until the children have done these things, in any order."""
        deadline = time.monotonic() + 60
        while missing := [event for event in events if not any(line.startswith(event) for line in self.log)]:
            assert time.monotonic() < deadline, (missing, self.log)
            time.sleep(0.01)

    def pid(self, name: str) -> int:
        return int([line.split()[2] for line in self.log if line.startswith(f"{name} started")][-1])

    def serve(self) -> None:
        self.start()
        self.wait_for("scheduler serving", "f0 serving", "f1 serving")

    def wait(self) -> tuple[int, str]:
        """Exit code and standard error."""
        _, said = self.process.communicate(timeout=60)
        return self.process.returncode, said

    def stop(self) -> tuple[int, str]:
        self.process.send_signal(signal.SIGTERM)
        return self.wait()


@pytest.fixture
def supervised(tmp_path: Path) -> Iterator[Supervised]:
    supervised = Supervised(tmp_path)
    yield supervised
    supervised.process.kill()
    assert supervised.process.stderr is not None
    if not supervised.process.stderr.closed:
        supervised.wait()


def test_the_scheduler_starts_first_and_ends_last(supervised: Supervised) -> None:
    supervised.serve()
    events = [line.split()[:2] for line in supervised.log]
    assert events[:2] == [["scheduler", "started"], ["scheduler", "serving"]]
    assert events.index(["f0", "serving"]) < events.index(["f1", "started"])
    code, said = supervised.stop()
    assert (code, said.splitlines()) == (0, ["serving", "draining", "stopped"])
    assert supervised.log[-1] == "scheduler SIGTERM" and {"f0 SIGTERM", "f1 SIGTERM"} < set(supervised.log)


@pytest.mark.parametrize("name", ["scheduler", "f0", "f1"])
def test_whoever_is_killed_is_started_again_where_it_was(supervised: Supervised, name: str) -> None:
    supervised.serve()
    others = [supervised.pid(other) for other in ("scheduler", "f0", "f1") if other != name]
    killed = supervised.pid(name)
    os.kill(killed, signal.SIGKILL)
    while supervised.pid(name) == killed:
        time.sleep(0.01)
    assert supervised.stop()[0] == 0
    started = [line.split() for line in supervised.log if " started " in line]
    assert started[-1] == [name, "started", str(supervised.pid(name)), "again", f"--{name}-port", "7"]
    assert {int(words[2]) for words in started} == {*others, killed, supervised.pid(name)}


def test_what_cannot_start_is_said_once_and_ends_everything_with_its_code(supervised: Supervised) -> None:
    supervised.says("f0", "die2")
    supervised.start()
    code, said = supervised.wait()
    assert (code, said.splitlines()) == (2, ["f0 cannot start"])
    assert not any(line.startswith("f1") for line in supervised.log) and "scheduler SIGTERM" in supervised.log


def test_a_scheduler_that_cannot_start_has_no_front_ends(supervised: Supervised) -> None:
    supervised.says("scheduler", "die1")
    supervised.start()
    assert supervised.wait() == (1, "scheduler cannot start\n")
    assert not any(line.startswith("f") for line in supervised.log)


def test_who_does_not_come_back_time_and_again_ends_everything_with_its_code(supervised: Supervised) -> None:
    supervised.says("f1", "serve", *["die3"] * 5)
    supervised.serve()
    os.kill(supervised.pid("f1"), signal.SIGKILL)
    code, said = supervised.wait()
    assert (code, said.count("f1 cannot start")) == (3, 5)
    assert {"f0 SIGTERM", "scheduler SIGTERM"} < set(supervised.log)


def test_a_second_signal_ends_everything_at_once(supervised: Supervised) -> None:
    supervised.says("f0", "stay")
    supervised.serve()
    supervised.process.send_signal(signal.SIGTERM)
    supervised.wait_for("f0 SIGTERM", "f1 SIGTERM")
    assert "scheduler SIGTERM" not in supervised.log
    supervised.process.send_signal(signal.SIGINT)
    supervised.wait_for("scheduler SIGTERM")
    os.kill(supervised.pid("f0"), signal.SIGKILL)
    assert supervised.wait()[0] == 0
    assert supervised.log.count("f0 SIGTERM") == 2


def test_a_scheduler_that_dies_while_front_ends_drain_is_started_again_and_they_are_not(supervised: Supervised) -> None:
    supervised.says("f0", "stay")
    supervised.serve()
    supervised.process.send_signal(signal.SIGTERM)
    supervised.wait_for("f0 SIGTERM", "f1 SIGTERM")
    killed = supervised.pid("scheduler")
    os.kill(killed, signal.SIGKILL)
    while supervised.pid("scheduler") == killed:
        time.sleep(0.01)
    os.kill(supervised.pid("f0"), signal.SIGKILL)
    assert supervised.wait()[0] == 0
    assert [line.split()[0] for line in supervised.log].count("f1") == 3  # started, serving, SIGTERM


def test_whoever_falls_silent_is_killed_and_started_again(supervised: Supervised) -> None:
    supervised.says("f1", "mute")
    supervised.start(silence_seconds=(1.0, 60.0))
    supervised.wait_for("f1 serving")
    silent = supervised.pid("f1")
    while supervised.pid("f1") == silent:
        time.sleep(0.01)
    assert "a process is silent and is killed" in supervised.stop()[1]


def test_whoever_hangs_before_it_serves_ends_the_start(supervised: Supervised) -> None:
    supervised.says("f1", "hang")
    supervised.start(silence_seconds=(60.0, 3.0))
    code, said = supervised.wait()
    assert (code, said.splitlines()) == (1, ["a process is silent and is killed", "a process ended while it started"])
    assert {"f0 SIGTERM", "scheduler SIGTERM"} < set(supervised.log)


def test_whoever_hangs_when_it_is_started_again_gets_another_chance(supervised: Supervised) -> None:
    supervised.says("f1", "serve", "hang")
    supervised.start(silence_seconds=(60.0, 3.0))
    supervised.wait_for("f1 serving")
    os.kill(supervised.pid("f1"), signal.SIGKILL)
    while supervised.log.count("f1 serving") < 2:
        time.sleep(0.01)
    assert supervised.stop()[0] == 0


def test_a_start_may_take_as_long_as_it_says_that_it_is_well(supervised: Supervised) -> None:
    supervised.says("f1", "wait")
    supervised.start(silence_seconds=(60.0, 3.0))
    supervised.wait_for("f1 started")
    time.sleep(4.0)
    code, said = supervised.stop()
    assert (code, "silent" in said) == (0, False)


def test_a_signal_while_it_starts_ends_it(supervised: Supervised) -> None:
    supervised.says("f0", "wait")
    supervised.start()
    supervised.wait_for("f0 started")
    assert supervised.stop()[0] == 0
    assert not any(line.startswith("f1") for line in supervised.log)


def test_a_child_that_drains_drains_all(supervised: Supervised) -> None:
    supervised.says("scheduler", "drain")
    supervised.start()
    assert supervised.wait()[0] == 0
    assert "scheduler SIGTERM" in supervised.log


def test_hang_up_reaches_everybody_and_ends_nobody(supervised: Supervised) -> None:
    supervised.serve()
    supervised.process.send_signal(signal.SIGHUP)
    supervised.wait_for("scheduler SIGHUP", "f0 SIGHUP", "f1 SIGHUP")
    assert supervised.stop()[0] == 0


def test_children_learn_that_their_supervisor_is_gone(supervised: Supervised) -> None:
    supervised.serve()
    supervised.process.kill()
    supervised.wait_for("scheduler orphaned", "f0 orphaned", "f1 orphaned")
