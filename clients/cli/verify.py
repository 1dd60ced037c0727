"""`verify`: whether answers of a running service depend on circumstances."""

import argparse
import asyncio
import json
import sys
import uuid
from dataclasses import replace
from typing import TYPE_CHECKING

from clients.cli.command import Command, ExitCode
from clients.cli.connection_flags import credentials, targets
from pypto_serving.process.argument_types import between

if TYPE_CHECKING:
    from clients.async_client import AsyncClient
    from clients.determinism import Recording
    from clients.request import Request

_DESCRIPTION = """\
Ask a running service the same thing under several circumstances, and compare what comes back to the last bit: tokens, and log
probabilities with five alternatives each. One request takes the most likely tokens, another draws with a seed. Each runs alone, with
its prompt cached, among others, and resumed from its middle, where all before is computed anew.

With --until-preempted it also runs until others of higher priority have taken its pages away, with twice as many of them each time.
That is a load that everybody notices: leave it out on a service that is used.

The exit status is 1 if anything differs. Answers of workers with different hardware, kernels or versions (another numerics id) are not
compared, which is said."""
_MAX_OTHERS = 1024


class Verify(Command):
    """Prints the hashes of what came back, and whether they are the same."""

    name = "verify"
    summary = "check that answers do not depend on what else the service does"
    examples = ("--target 127.0.0.1:50051", "--until-preempted --max-tokens 200")

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.description = _DESCRIPTION
        parser.add_argument("--max-tokens", type=between(2, 100_000), default=48, metavar="N", help="tokens of each answer (%(default)s)")
        parser.add_argument("--others", type=between(1, _MAX_OTHERS), default=31, metavar="N", help="other requests (%(default)s)")
        parser.add_argument("--until-preempted", action="store_true", help=f"add others, up to {_MAX_OTHERS}, until it is preempted")
        parser.add_argument("--json", action="store_true", help="one JSON object per answer")

    def run(self, arguments: argparse.Namespace) -> int:
        return ExitCode.OK if asyncio.run(_verify(arguments)) else ExitCode.FAILED


async def _verify(arguments: argparse.Namespace) -> bool:
    from clients.async_client import AsyncClient
    from clients.determinism import REQUESTS

    report = Report(arguments.json)
    options = {"connect_seconds": arguments.connect_seconds, "resume_seconds": arguments.resume_seconds}
    async with AsyncClient(targets(arguments), credentials=credentials(arguments), **options) as client:
        for name, request in REQUESTS.items():
            # No earlier call has cached anything under its salt.
            asked = replace(request, max_tokens=arguments.max_tokens, cache_salt=uuid.uuid4().hex)
            await _under_circumstances(client, asked, arguments, report.begin(name))
    report.end()
    return report.is_identical


async def _under_circumstances(client: "AsyncClient", request: "Request", arguments: argparse.Namespace, report: "Comparison") -> None:
    from clients.determinism import other_requests, record, record_among, record_resumed

    report.add("alone", await record(client, request))
    again = await record(client, request)
    report.add(f"alone, {again.cached_tokens} prompt tokens cached", again)
    recording, num_beside = await record_among(client, request, other_requests(arguments.others, 2 * arguments.max_tokens))
    report.add(f"among {arguments.others} others, {num_beside} of them at its side", recording)
    half = arguments.max_tokens // 2
    report.add(f"resumed after {half} tokens", await record_resumed(client, request, half))
    if arguments.until_preempted:
        await until_preempted(client, request, arguments.others, report)


async def until_preempted(client: "AsyncClient", request: "Request", count: int, report: "Comparison") -> bool:
    """Add an answer that others preempted: `count` of them at first, twice as many each time; returns whether there is one."""
    from clients.determinism import record_preempted

    while count <= _MAX_OTHERS:
        recording = await record_preempted(client, request, count)
        if recording.num_readmissions:
            report.add(f"preempted by {count} others (readmissions: {recording.num_readmissions})", recording)
            return True
        count *= 2
    report.note(f"{count // 2} others did not preempt it: this service has pages for all of them")
    return False


class Report:
    """Prints each answer's hashes beside those of the first one."""

    def __init__(self, as_json: bool = False) -> None:
        self._as_json = as_json
        self._comparisons: list[Comparison] = []

    @property
    def is_identical(self) -> bool:
        """Whether nothing differed."""
        return not any(comparison.num_differences for comparison in self._comparisons)

    def begin(self, name: str) -> "Comparison":
        """Compare with each other what is added to the result."""
        if not self._as_json:
            print(f"{name} request:")
        self._comparisons.append(Comparison(name, self._as_json))
        return self._comparisons[-1]

    def end(self) -> None:
        """Say what came of it."""
        if not self._as_json:
            print("identical under all circumstances" if self.is_identical else "NOT identical")


class Comparison:
    """The answers to one request."""

    def __init__(self, name: str, as_json: bool) -> None:
        self.num_differences = 0
        self._name = name
        self._as_json = as_json
        self._first: Recording | None = None

    def add(self, circumstance: str, recording: "Recording") -> None:
        """Print it; the first one is what the others are compared with."""
        verdict = self._verdict(recording)
        self._first = self._first or recording
        hashes = {"tokens": recording.token_hash, "logprobs": recording.logprob_hash}
        if self._as_json:
            about = {"num_tokens": len(recording.token_ids), "num_readmissions": recording.num_readmissions}
            print(json.dumps({"request": self._name, "circumstance": circumstance, **hashes, "verdict": verdict, **about}), flush=True)
        else:
            print(f"  {circumstance:44}  tokens {hashes['tokens']}  log probabilities {hashes['logprobs']}  {verdict}".rstrip(), flush=True)

    def note(self, text: str) -> None:
        """Print what was not done, and why."""
        print(f"  ({text})", file=sys.stderr if self._as_json else sys.stdout, flush=True)

    def _verdict(self, recording: "Recording") -> str:
        if self._first is None:
            return ""
        if recording.numerics_id != self._first.numerics_id:
            return f"not compared: numerics id {recording.numerics_id} after {self._first.numerics_id}"
        difference = recording.difference_from(self._first)
        self.num_differences += bool(difference)
        return f"DIFFERS: {difference}" if difference else "identical"
