"""Grammars that would end or block the process that compiles them."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from fakes.control_plane.scripted_engine import VOCAB_SIZE
from fakes.text.tokenizers import EOS

from control_plane.edge.text.constraint.grammar import GrammarRefused, json_schema_grammar, lark_grammar, regex_grammar
from control_plane.edge.text.constraint.grammar_trial import GrammarTrial, TrialBroken, TrialFailed


@pytest.fixture
def trial() -> GrammarTrial:
    return GrammarTrial(VOCAB_SIZE, {EOS: "<eos>", 260: "<think>"})


def test_a_harmless_grammar_passes(trial: GrammarTrial) -> None:
    trial.check(lark_grammar('start: <think> "a" <[300]>'))


@pytest.mark.parametrize(
    "grammar",
    [
        lark_grammar("start: r0\n" + "\n".join(f"r{i}: r{i + 1}" for i in range(5000)) + '\nr5000: "a"'),
        json_schema_grammar(json.dumps({"$ref": "#/d/0", "d": {str(i): {"$ref": f"#/d/{i + 1}"} for i in range(3000)} | {"3000": {}}})),
    ],
)
def test_a_grammar_that_overflows_the_stack_is_refused(trial: GrammarTrial, grammar: str) -> None:
    with pytest.raises(GrammarRefused, match="too complex"):
        trial.check(grammar)


@pytest.mark.slow
def test_a_grammar_that_takes_for_ever_is_refused_and_not_tried_again(trial: GrammarTrial, monkeypatch: pytest.MonkeyPatch) -> None:
    endless = lark_grammar("start: A\nA: " + " & ".join(f"/(?s:.*)x{i}(?s:.*)/" for i in range(1000)))
    with pytest.raises(GrammarRefused, match="too complex"):
        trial.check(endless)
    monkeypatch.setattr("subprocess.run", None)
    with pytest.raises(GrammarRefused, match="too complex"):
        trial.check(endless)


@pytest.mark.parametrize("error", [subprocess.TimeoutExpired("trial", 60), BlockingIOError("no more processes")])
def test_a_machine_without_room_for_a_trial_is_not_held_against_the_grammar(
    trial: GrammarTrial, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def run(*arguments: object, **options: object) -> None:
        raise error

    with monkeypatch.context() as patched, pytest.raises(TrialFailed, match=type(error).__name__):
        patched.setattr(subprocess, "run", run)
        trial.check(regex_grammar("a"))
    trial.check(regex_grammar("a"))


def test_sch_03_packages_are_found_where_this_process_finds_them(trial: GrammarTrial, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", sys._base_executable)  # type: ignore[attr-defined]  # knows no package of ours by itself
    trial.check(regex_grammar("never tried before"))


def test_sch_03_a_trial_that_breaks_is_ours_and_is_tried_again(
    trial: GrammarTrial, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "llguidance.py").write_text("raise ImportError('no such library')")
    with monkeypatch.context() as patched, pytest.raises(TrialBroken, match=r"exit code 1: (?s:.*)no such library"):
        patched.syspath_prepend(tmp_path)
        trial.check(regex_grammar("a"))
    trial.check(regex_grammar("a"))


def test_sch_03_a_trial_that_somebody_kills_is_not_held_against_the_grammar(trial: GrammarTrial, monkeypatch: pytest.MonkeyPatch) -> None:
    killed = subprocess.CompletedProcess((), -signal.SIGKILL, b"", b"")
    with monkeypatch.context() as patched, pytest.raises(TrialFailed, match="killed"):
        patched.setattr(subprocess, "run", lambda *arguments, **options: killed)
        trial.check(regex_grammar("a"))
    trial.check(regex_grammar("a"))


def test_what_a_schema_asks_to_be_ignored_is_refused(trial: GrammarTrial) -> None:
    with pytest.raises(GrammarRefused, match="not supported: Unimplemented keys"):
        trial.check(json_schema_grammar('{"x-guidance": {"lenient": true}, "not": {}}'))


def test_reasons_come_back(trial: GrammarTrial) -> None:
    with pytest.raises(GrammarRefused, match="unclosed group"):
        trial.check(regex_grammar("("))
