"""schemathesis tries the OpenAPI document on a running gateway."""

import asyncio
import sys

import pytest
from harness.running_gateway import running_gateway
from harness.service import scripted_service

CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
    "negative_data_rejection",
    "unsupported_method",
)


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_no_answer_breaks_what_the_document_says(scripted_model):
    async with (
        scripted_service(scripted_model, max_model_len=16) as service,
        running_gateway(f"127.0.0.1:{service.server.plane.ports['address']}") as gateway,
    ):
        code, said = await tried(gateway.url)
        assert code == 0, said[-4000:]


async def tried(url):
    """Exit code and output."""
    flags = ("--checks", ",".join(CHECKS), "--phases", "examples,coverage,fuzzing", "--max-examples", "20", "--seed", "1", "--no-color")
    command = (sys.executable, "-m", "schemathesis.cli", "run", f"{url}/openapi.json", *flags)
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT)
    said, _ = await process.communicate()
    return process.returncode, said.decode()
