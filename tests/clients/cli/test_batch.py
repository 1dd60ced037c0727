import asyncio
import json
import os
import signal

import grpc
import pytest
from fakes.control_plane.inference_service import StreamFault

from clients.cli import answers_file


def write(path, *lines):
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return str(path)


def answers(path):
    return {entry["id"]: entry for entry in map(json.loads, path.read_text().splitlines())}


@pytest.fixture
def output(tmp_path):
    return tmp_path / "answers.jsonl"


async def test_every_line_is_answered(command_line, server, tmp_path, output):
    chat = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1, "n": 2}
    prompts = write(tmp_path / "prompts.jsonl", {"id": "a", "prompt": "x"}, "", chat)
    ended = await command_line("batch", prompts, "--output", str(output), "--max-tokens", "3", target=server.target)
    assert (ended.status, ended.out, ended.err) == (0, "", "2 answered, 0 failed, 0 had an answer before\n")
    found = answers(output)
    assert found["a"]["choices"][0]["token_ids"] == [100, 101, 102]  # the flag's
    assert [choice["text"] for choice in found[3]["choices"]] == ["100 ", "200 "]  # the line's own
    assert found["a"]["usage"]["completion_tokens"] == 3


async def test_fields_of_a_line_reach_the_server(command_line, server, output):
    call = {"id": "c", "type": "function", "function": {"name": "add", "arguments": "{}"}}
    line = {"messages": [{"role": "assistant", "tool_calls": [call]}], "tools": [{"function": {"name": "add"}}], "logit_bias": {"5": 1}}
    await command_line("batch", "-", "--output", str(output), stdin=json.dumps(line), target=server.target)
    (spec,) = server.service.seen
    assert spec.chat.messages[0].tool_calls[0].name == spec.chat.tools[0].name == "add"
    assert dict(spec.sampling.logit_bias) == {5: 1.0}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 1 is not JSON"),
        ("[1]", "line 1 is not a JSON object"),
        ('{"promt": "x"}', "promt: a request has no such field; is it prompt?"),
        ('{"prompt": "x", "messages": []}', "give exactly one of prompt, messages and token_ids"),
        ('{"messages": "x"}', "messages: must be a list of objects"),
        ('{"prompt": 5}', "prompt: 5 is not accepted"),
        ('{"id": [], "prompt": "x"}', "id: [] is neither text nor an integer"),
        ('{"prompt": "x", "logit_bias": {"a": 1}}', "invalid literal"),
    ],
)
async def test_a_line_that_cannot_be_asked_is_an_error_of_its_own(command_line, server, output, line, message):
    ended = await command_line("batch", "-", "--output", str(output), stdin=f'{line}\n{{"prompt": "y"}}\n', target=server.target)
    assert (ended.status, ended.err) == (1, f"1 answered, 1 failed ({output} says why), 0 had an answer before\n")
    error = answers(output)[1]["error"]
    assert error["code"] == "INVALID_ARGUMENT" and message in error["message"]


async def test_it_goes_on_with_what_has_no_answer(command_line, server, tmp_path, output):
    prompts = write(tmp_path / "prompts.jsonl", *({"id": name, "prompt": name} for name in "abcd"))
    done = {"id": "a", "request_id": "1", "choices": ["done before"]}
    failed = {"id": "b", "request_id": "2", "error": {"code": "INTERNAL", "message": "bad day"}}
    write(output, done, failed, '{"id": "c", "request_id": "3", "choi')
    output.write_bytes(output.read_bytes().removesuffix(b"\n"))  # torn in the middle of a line
    ended = await command_line("batch", prompts, "--output", str(output), target=server.target)
    assert (ended.status, ended.err) == (0, "3 answered, 0 failed, 1 had an answer before\n")
    assert sorted(spec.text for spec in server.service.seen) == ["b", "c", "d"]
    assert len(output.read_text().splitlines()) == 4 and answers(output)["a"] == done
    again = await command_line("batch", prompts, "--output", str(output), target=server.target)
    assert again.err == "0 answered, 0 failed, 4 had an answer before\n"


async def test_an_interrupted_batch_keeps_what_it_has(start_process, server, tmp_path, output):
    server.service.free_tokens, server.service.default_max_tokens = 1, 1
    prompts = write(tmp_path / "prompts.jsonl", {"prompt": "a"}, {"prompt": "b", "max_tokens": 2})
    server.service.gate.clear()
    process = await start_process("batch", prompts, "--output", str(output), target=server.target)
    while not (output.exists() and output.read_bytes().endswith(b"\n")):
        await asyncio.sleep(0.01)
    process.send_signal(signal.SIGINT)
    assert await process.communicate() == (b"", b"interrupted\n")
    assert process.returncode == 130 and list(answers(output)) == [1]


async def test_refused_requests_are_told_with_their_code(command_line, server, output):
    server.service.faults.append(StreamFault(grpc.StatusCode.OUT_OF_RANGE, None, "too long"))
    ended = await command_line("batch", "-", "--output", str(output), stdin='{"prompt": "x"}', target=server.target)
    assert ended.status == 1
    assert answers(output)[1]["error"] == {"code": "OUT_OF_RANGE", "message": "too long"}


async def test_a_server_that_is_gone_ends_it(command_line, dead_target, output):
    arguments = ("batch", "-", "--output", str(output), "--connect-seconds", "0.1")
    ended = await command_line(*arguments, stdin='{"prompt": "x"}\n{"prompt": "y"}', target=dead_target)
    assert ended.status == 3 and f"no answer from {dead_target}" in ended.err and output.read_text() == ""


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (['{"id": "a", "prompt": "x"}', '{"id": "a", "prompt": "y"}'], ':2: id "a" is that of line 1 as well'),
        (['{"prompt": "x"}', '{"id": 1, "prompt": "y"}'], ":2: id 1 is that of line 1 as well"),
    ],
)
async def test_lines_of_one_id_are_bad_usage(command_line, server, tmp_path, output, lines, message):
    ended = await command_line("batch", write(tmp_path / "p", *lines), "--output", str(output), target=server.target)
    assert ended.status == 2 and message in ended.err


@pytest.mark.parametrize(
    "content",
    [
        "my notes\n",
        "my notes",
        '{"id": "a", "prompt": "x"}\n{"id": "b", "prompt": "y"}',
        '{"id": "a", "prompt": "x"}',
        '{"id": "a", "messages": [], "error": "tell me"}\n',
    ],
)
async def test_a_file_that_is_no_output_is_left_alone(command_line, server, tmp_path, content):
    other = tmp_path / "other"
    other.write_text(content)
    ended = await command_line("batch", "-", "--output", str(other), stdin='{"prompt": "x"}', target=server.target)
    assert ended.status == 2 and f"{other}:1: is no line of this command" in ended.err
    assert other.read_text() == content


async def test_files_that_cannot_be_used_are_named(command_line, tmp_path):
    missing = await command_line("batch", str(tmp_path / "none"), "--output", str(tmp_path / "out"))
    assert (missing.status, missing.err) == (2, f"error: {tmp_path}/none: No such file or directory\n")
    folder = await command_line("batch", "-", "--output", str(tmp_path))
    assert folder.status == 2 and "no file that could be continued" in folder.err


async def test_two_of_them_do_not_write_to_one_file(command_line, server, output):
    server.service.gate.clear()
    first = asyncio.create_task(command_line("batch", "-", "--output", str(output), stdin='{"prompt": "x"}', target=server.target))
    while not server.service.seen:
        await asyncio.sleep(0.01)
    from clients.cli.answers_file import Answers, UsageError

    with pytest.raises(UsageError, match="another process writes to"), Answers(output):
        pass
    server.service.gate.set()
    assert (await first).status == 0


async def test_a_full_disk_names_the_file(command_line, server):
    ended = await command_line("batch", "-", "--output", "/dev/full", stdin='{"prompt": "x"}', target=server.target)
    assert ended.status == 2 and "--output: /dev/full is no file" in ended.err


async def test_an_answer_that_cannot_be_written_names_the_file(command_line, server, output, monkeypatch):
    output.touch()
    monkeypatch.setattr(answers_file, "_locked", lambda path: os.fdopen(os.open("/dev/full", os.O_WRONLY), "wb", buffering=0))
    ended = await command_line("batch", "-", "--output", str(output), stdin='{"prompt": "x"}', target=server.target)
    assert (ended.status, ended.err) == (1, f"error: --output: {output}: No space left on device\n")
