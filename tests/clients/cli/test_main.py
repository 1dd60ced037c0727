import asyncio
import io
import os
import shlex
import signal
import sys

import grpc
import pytest
from fakes.control_plane.inference_service import StreamFault

from clients.cli import streams
from clients.cli.parser import COMMANDS, command_parser

NOT_FINITE = [
    ("generate", "hi", "--timeout", "inf"),
    ("generate", "hi", "--timeout", "1e300"),
    ("generate", "hi", "--temperature", "nan"),
    ("health", "--wait", "nan"),
    ("models", "--connect-seconds", "inf"),
    ("bench", "--rate", "nan"),
]


async def test_help_tells_exit_statuses_and_loads_nothing_slow(command_line):
    ended = await command_line("--help")
    assert ended.status == 0
    assert "130  interrupted" in ended.out and "generate" in ended.out
    code = "import sys, clients.cli.main; assert not {'grpc', 'numpy', 'rich', 'google.protobuf'} & set(sys.modules)"
    assert await (await asyncio.create_subprocess_exec(sys.executable, "-c", code)).wait() == 0


async def test_nobody_listening_names_the_way_out(command_line, dead_target):
    ended = await command_line("generate", "hi", "--target", dead_target, "--connect-seconds", "0.1")
    assert (ended.status, ended.out) == (3, "")
    start = "start it with `pypto-serving-control`, or in a checkout with `make serve-control`"
    assert ended.err == f"error: no answer from {dead_target}: {start}\n"


async def test_unavailable_server_is_told_apart_from_none(command_line, server):
    server.service.faults.append(StreamFault(after_tokens=None, details="no live worker"))
    ended = await command_line("generate", "hi", "--connect-seconds", "0", target=server.target)
    assert ended.status == 3
    assert "is not available" in ended.err and "no live worker" in ended.err


async def test_refused_request_names_code_message_and_request(command_line, server):
    server.service.faults.append(StreamFault(grpc.StatusCode.INVALID_ARGUMENT, 1, "sampling.top_p: 2 is above 1"))
    ended = await command_line("generate", "hi", target=server.target)
    assert (ended.status, ended.out) == (1, "100 \n")
    assert "error: INVALID_ARGUMENT: sampling.top_p: 2 is above 1 (request fake-1)" in ended.err


@pytest.mark.parametrize("arguments", [(), ("generate", "--top-k", "x"), ("fly",), ("generate", "a", "--chat", "--raw"), *NOT_FINITE])
async def test_bad_usage_is_status_two(command_line, arguments):
    assert (await command_line(*arguments)).status == 2


async def test_process_reads_a_pipe_and_its_environment(start_process, server):
    process = await start_process("generate", "--raw", target=server.target)
    assert await process.communicate(b"hi") == (b"100 101 102 103 104 \n", b"")
    assert (process.returncode, server.service.seen[0].text) == (0, "hi")


async def test_process_tells_of_a_broken_stream_on_standard_error(start_process, server):
    server.service.faults.append(StreamFault(after_tokens=2))
    out, err = await (await start_process("generate", "hi", target=server.target)).communicate()
    assert out == b"100 101 102 103 104 \n"
    assert f"[interrupted at {server.target} (scripted fault), resuming]\n[resumed after" in err.decode()


async def test_interrupt_is_status_130_and_cancels_the_request(start_process, server):
    server.service.gate.clear()
    process = await start_process("generate", "--raw", "hi", target=server.target)
    while not server.service.seen:
        await asyncio.sleep(0.01)
    process.send_signal(signal.SIGINT)
    assert await process.communicate() == (b"", b"interrupted\n")
    assert process.returncode == 130
    await asyncio.wait_for(server.service.cancelled.wait(), 5)


async def test_reader_that_leaves_is_no_traceback(start_process, server):
    server.service.default_max_tokens = 20_000
    reading, writing = os.pipe()
    process = await start_process("generate", "--raw", "hi", target=server.target, stdout=writing)
    os.close(writing)
    await asyncio.to_thread(os.read, reading, 4)
    os.close(reading)
    assert await process.communicate() == (None, b"")
    assert process.returncode == 1


@pytest.mark.parametrize("command", ["generate", "chat", "tokenize"])
async def test_input_that_is_no_text_is_bad_usage(start_process, server, command):
    process = await start_process(command, target=server.target)
    assert await process.communicate(b"\xff\xfe") == (b"", b"error: standard input is not utf-8\n")
    assert process.returncode == 2


async def test_argument_that_is_no_text_is_bad_usage(start_process, server):
    process = await start_process("generate", b"\xff\xfe", target=server.target)
    assert await process.communicate() == (b"", b"error: argument '\\udcff\\udcfe' is not UTF-8\n")
    assert process.returncode == 2


@pytest.mark.parametrize("arguments", [("generate", "--raw", "hi"), ("models",)])
async def test_full_disk_is_one_line(start_process, server, arguments):
    with open("/dev/full", "w") as full:
        process = await start_process(*arguments, target=server.target, stdout=full)
    assert await process.communicate() == (None, b"error: [Errno 28] No space left on device\n")
    assert process.returncode == 1


async def test_closed_output_is_one_line(server):
    command = f"{sys.executable} -m clients generate --raw hi --target {server.target} >&-"
    process = await asyncio.create_subprocess_shell(command, stderr=asyncio.subprocess.PIPE)
    assert await process.communicate() == (None, b"error: standard output is closed\n")
    assert process.returncode == 1


def test_what_the_terminal_cannot_show_is_escaped(monkeypatch):
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="ascii"))
    streams.prepare()
    print("ä", flush=True)
    assert written.getvalue() == b"\\xe4\n"


@pytest.mark.parametrize(
    ("command", "example"), [(command, each) for group in COMMANDS.values() for command in group for each in command.examples]
)
def test_every_example_of_the_help_is_a_good_command_line(command, example, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    words = shlex.split(example)
    words = words[: words.index("<")] if "<" in words else words
    assert command_parser("host:1").parse_args([command.name, *words]).run == command.run


async def test_help_lists_every_command_once(command_line):
    shown = (await command_line("--help")).out
    for command in (command for group in COMMANDS.values() for command in group):
        assert shown.count(f"\n  {command.name} ") == 1
        assert (await command_line(command.name, "--help")).status == 0
