import asyncio
import json

import pytest

from pypto_serving.inference.v1 import inference_pb2 as pb


@pytest.mark.parametrize(
    ("arguments", "out"),
    [
        (("tokenize", "a b c"), "7 8 9\n"),
        (("tokenize", "a b c", "--chat"), "7 8 9\n"),
        (("detokenize", "1", "2"), "1 2\n"),
        (("detokenize", "1,2"), "1 2\n"),
        (("abort", "live"), "aborted\n"),
        (("abort", "gone"), "was not live\n"),
        (("health",), "SERVING\n"),
    ],
)
async def test_command_prints_its_result(command_line, server, arguments, out):
    ended = await command_line(*arguments, target=server.target)
    assert (ended.status, ended.out, ended.err) == (0, out, "")


async def test_tokens_are_read_from_a_pipe(command_line, server):
    assert (await command_line("detokenize", stdin="1 2\n3\n", target=server.target)).out == "1 2 3\n"


async def test_strange_token_id_is_bad_usage(command_line, server):
    ended = await command_line("detokenize", "x", target=server.target)
    assert ended.status == 2 and "ids" in ended.err


async def test_json_of_tokens_has_spans(command_line, server):
    ended = await command_line("tokenize", "a b c", "--json", target=server.target)
    assert json.loads(ended.out) == {"token_ids": [7, 8, 9], "spans": [[0, 1], [2, 3], [4, 5]], "max_model_len": 64}


async def test_models_and_server_are_described(command_line, server):
    models = await command_line("models", target=server.target)
    assert "name                 fake\n" in models.out and "has_chat_template    True\n" in models.out
    described = await command_line("server", "--json", target=server.target)
    assert json.loads(described.out)["num_workers"] == 1
    server.service.described.uptime_seconds = 1 / 3
    assert "uptime_seconds       0.3\n" in (await command_line("server", target=server.target)).out


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"num_workers": 0}, "no worker is in session with the server: start one (`make serve-worker`)"),
        ({"num_workers": 2}, "none of the server's workers (2) answers"),
        ({"num_workers": 1, "draining": True}, "about to stop"),
        ({"refused_workers": [pb.RefusedWorker(address="w:1", reason="another model")]}, "worker w:1 is refused: another model"),
    ],
)
async def test_health_tells_why_a_server_does_not_serve(command_line, server, fields, reason):
    await server.set_serving(False)
    server.service.described = pb.GetServerResponse(**fields)
    ended = await command_line("health", "--wait", "0.3", target=server.target)
    assert (ended.status, ended.out) == (1, "NOT_SERVING\n") and reason in ended.err


async def test_health_needs_no_reason(command_line, server):
    await server.set_serving(False)
    server.service.described = None
    ended = await command_line("health", "--connect-seconds", "0", target=server.target)
    assert (ended.status, ended.out) == (1, "NOT_SERVING\n") and "does not say why" in ended.err


async def test_health_waits_for_a_server_to_come(command_line, server):
    await server.kill()
    waiting = command_line("health", "--wait", "20", target=server.target)
    ended, _ = await asyncio.gather(waiting, server.start())
    assert (ended.status, ended.out) == (0, "SERVING\n")


async def test_health_of_nobody_is_unreachable(command_line, dead_target):
    assert (await command_line("health", "--wait", "0.3", target=dead_target)).status == 3
