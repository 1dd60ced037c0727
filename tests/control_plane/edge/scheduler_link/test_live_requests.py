"""What is kept of requests from one scheduler to the next."""

from fakes.control_plane.engine_doubles import make_request

from control_plane.core.sampling import SamplingParams
from control_plane.edge.frontend_link.commands import SessionLimits, read_submissions
from control_plane.edge.scheduler_link.commands import submission
from control_plane.edge.scheduler_link.live_requests import LiveRequests
from pypto_serving.scheduler.v1 import scheduler_pb2 as pb


def test_a_prompt_without_generated_tokens_is_submitted_again():
    requests = LiveRequests(max_losses=8)
    requests.add(make_request(max_tokens=0, sampling=SamplingParams(prompt_logprobs=1)), now=100.0)
    requests.pop_unsent()
    requests.lose_session(now=101.0)
    again = requests.pop_unsent()
    assert again and not requests.pop_ended().finished
    commands = pb.Commands(commands=[submission(again, now=102.0)])
    (read,) = read_submissions(commands, SessionLimits(100, (), ()), now=202.0)
    assert (read.max_tokens, read.arrival_time, read.choices[0].sampling.prompt_logprobs) == (0, 200.0, 1)
