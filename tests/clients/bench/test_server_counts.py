import pytest

from clients.bench.server_counts import TokenCounts, parse

EXPOSITION = """# HELP pypto_serving_prompt_tokens_total Prompt tokens.
# TYPE pypto_serving_prompt_tokens_total counter
pypto_serving_prompt_tokens_total{source="computed"} 10.0
pypto_serving_prompt_tokens_total{source="cached"} 5.0
pypto_serving_prompt_tokens_created{source="cached"} 1.7e+09
pypto_serving_generation_tokens_total 1.2e+03
"""


def test_counters_are_summed_over_their_labels():
    assert parse(EXPOSITION) == TokenCounts(prompt=15, generation=1200)


def test_missing_counter_is_named():
    with pytest.raises(ValueError, match="pypto_serving_generation_tokens_total"):
        parse(EXPOSITION.replace("generation", "other"))
