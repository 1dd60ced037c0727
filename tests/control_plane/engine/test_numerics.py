"""Under which numerics a sequence may run."""

import pytest
from fakes.control_plane.engine_doubles import Bench
from fakes.worker.strict_worker import describe, solo

from control_plane.core.sampling import SamplingParams
from control_plane.engine.ports import Failure

PROMPT = (1, 2, 3)


def test_a_delta_names_the_numerics_under_which_its_tokens_were_made():
    bench = Bench(describe(numerics_id="bf16"))
    bench.submit()
    bench.run()
    assert bench.front_end.numerics_ids["r", 0] == ["bf16"] * 8


def test_a_choice_that_goes_on_under_other_numerics_says_so_from_there_on():
    bench = Bench(describe(numerics_id="first"), continue_on_numerics_change=True)
    bench.submit("r", max_tokens=20)
    bench.run(6)
    bench.join(describe(numerics_id="second"))
    bench.lose(bench.worker)
    bench.run()
    names = bench.front_end.numerics_ids["r", 0]
    assert set(names) == {"first", "second"}
    assert names == sorted(names)
    assert bench.front_end.output_of("r") == solo(PROMPT, 20)


def test_log_probabilities_of_a_prompt_are_all_of_the_same_numerics():
    bench = Bench(describe(numerics_id="own"), max_step_tokens=4)
    bench.submit("r", tuple(range(12)), max_tokens=2, sampling=SamplingParams(prompt_logprobs=0))
    bench.run(2)
    bench.lose(bench.worker)
    other, own = (bench.join(describe(address=f"{name}:1", numerics_id=name)) for name in ("other", "own"))
    bench.run()
    assert bench.front_end.prompt_logprobs["r"]
    assert (len(other.history), len(own.history) > 0) == (0, True)


def test_a_resume_is_tied_to_the_numerics_of_its_tokens():
    bench = Bench(describe(numerics_id="other"), describe(numerics_id="own"))
    bench.submit("r", max_tokens=20, resumed=solo(PROMPT, 3), numerics_id="own")
    bench.run()
    assert set(bench.front_end.numerics_ids["r", 0]) == {"own"}
    assert bench.front_end.output_of("r") == solo(PROMPT, 20)[3:]


def test_a_resume_waits_for_its_numerics_as_long_as_the_grace_time():
    bench = Bench(describe(numerics_id="other"), grace_seconds=30.0)
    bench.submit("r", resumed=solo(PROMPT, 3), numerics_id="own")
    bench.run()
    bench.clock.now += 29.0
    bench.turn()
    assert not bench.front_end.failed
    bench.clock.now += 1.0
    bench.turn()
    assert bench.front_end.failed["r"].failure is Failure.UNAVAILABLE
    assert "numerics id 'own'" in bench.front_end.failed["r"].message


def test_a_resume_goes_on_under_other_numerics_at_once_if_that_is_wanted():
    bench = Bench(describe(numerics_id="other"), continue_on_numerics_change=True)
    bench.submit("r", resumed=solo(PROMPT, 3), numerics_id="gone")
    bench.run()
    assert bench.front_end.numerics_ids["r", 0] == ["other"] * 5
    assert bench.metrics.total("numerics_changes") == 1


@pytest.mark.parametrize("changes", [{"numerics_id": "gone"}, {"resumed": solo(PROMPT, 3), "numerics_id": None}])
def test_a_resume_without_tokens_or_without_their_numerics_runs_anywhere(changes):
    bench = Bench()
    bench.submit("r", **changes)
    bench.run()
    assert ("r", 0) in bench.front_end.finished
    assert bench.metrics.total("numerics_changes") == 0
