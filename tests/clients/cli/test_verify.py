import asyncio
import json

import grpc
import pytest
from fakes.control_plane.inference_service import FakeInferenceService, FakeServer, StreamFault

ARGUMENTS = ("verify", "--max-tokens", "6", "--others", "4")


class CompanyMinding(FakeInferenceService):
    """Its tokens depend on how many calls there are."""

    num_calls = 0

    async def GenerateStream(self, request, context):
        self.num_calls += 1
        try:
            async for response in super().GenerateStream(request, context):
                if response.HasField("delta") and self.num_calls > 1:
                    response.delta.token_ids[0] += 1
                await asyncio.sleep(0.01)
                yield response
        finally:
            self.num_calls -= 1


class ForgetfulOfLogprobs(FakeInferenceService):
    """A resumed stream has other log probabilities."""

    def _delta(self, choice, start, stop):
        delta = super()._delta(choice, start, stop)
        for token_id in delta.token_ids:
            delta.logprobs.add(token_id=token_id, logprob=-1.0 - 0.001 * self.seen[-1].HasField("resume"))
        return delta


async def test_a_service_whose_answers_are_the_same_passes(command_line, server):
    ended = await command_line(*ARGUMENTS, target=server.target)
    assert (ended.status, ended.err) == (0, "")
    assert ended.out.count("  identical\n") == 6 and ended.out.endswith("identical under all circumstances\n")
    assert "resumed after 3 tokens" in ended.out and any(spec.HasField("resume") for spec in server.service.seen)


async def test_a_service_whose_tokens_depend_on_other_calls_fails(command_line):
    async with FakeServer(CompanyMinding()) as server:
        ended = await command_line(*ARGUMENTS, target=server.target)
    assert ended.status == 1 and ended.out.endswith("NOT identical\n")
    (line,) = [line for line in ended.out.splitlines() if "among 4 others" in line][:1]
    assert "DIFFERS: token 0 is 101, was 100" in line


async def test_a_log_probability_that_differs_fails(command_line):
    async with FakeServer(ForgetfulOfLogprobs()) as server:
        ended = await command_line(*ARGUMENTS, "--json", target=server.target)
    verdicts = {entry["circumstance"]: entry["verdict"] for entry in map(json.loads, ended.out.splitlines())}
    assert ended.status == 1 and verdicts["resumed after 3 tokens"].startswith("DIFFERS: log probabilities of token 3")
    assert verdicts["alone, 0 prompt tokens cached"] == "identical"


async def test_a_preemption_that_cannot_be_had_is_said(command_line, server):
    ended = await command_line("verify", "--max-tokens", "2", "--others", "1000", "--until-preempted", target=server.target)
    assert ended.status == 0 and "(1000 others did not preempt it" in ended.out


async def test_a_failing_request_is_one_line(command_line, server):
    server.service.faults.extend([None] * 3 + [StreamFault(grpc.StatusCode.INTERNAL, None, "no")])
    ended = await command_line(*ARGUMENTS, target=server.target)
    assert ended.status == 1 and ended.err == "error: INTERNAL: no\n"


@pytest.mark.parametrize("flags", [("--max-tokens", "1"), ("--others", "0"), ("--others", "5000")])
async def test_what_cannot_be_compared_is_bad_usage(command_line, flags):
    assert (await command_line("verify", *flags)).status == 2
