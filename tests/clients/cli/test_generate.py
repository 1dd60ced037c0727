import json

TEXT = "100 101 102 103 104 \n"


async def test_prompt_becomes_a_chat_when_the_model_has_a_template(command_line, server):
    ended = await command_line("generate", "hi", "--system", "be brief", target=server.target)
    assert (ended.status, ended.out, ended.err) == (0, TEXT, "")
    messages = server.service.seen[0].chat.messages
    assert [(message.role, message.content) for message in messages] == [("system", "be brief"), ("user", "hi")]


async def test_prompt_is_raw_without_a_template(command_line, server):
    server.service.has_chat_template = False
    await command_line("generate", "hi", target=server.target)
    assert server.service.seen[0].text == "hi"


async def test_parameters_reach_the_server(command_line, server):
    flags = "--max-tokens 2 --temperature 0 --top-p 0.5 --top-k 3 --min-p 0.1 --seed 9 --stop a --stop b --logprobs 2 --raw -n 2"
    ended = await command_line("generate", "hi", *flags.split(), target=server.target)
    spec = server.service.seen[0]
    assert (spec.stopping.max_tokens, list(spec.stopping.stop), spec.output.top_logprobs) == (2, ["a", "b"], 2)
    assert (spec.sampling.HasField("temperature"), spec.sampling.top_p, spec.sampling.top_k, spec.sampling.seed) == (True, 0.5, 3, 9)
    assert ended.out == "--- choice 0 (length)\n100 101 \n--- choice 1 (length)\n200 201 \n"


async def test_prompt_is_read_from_a_pipe(command_line, server):
    for arguments in (("generate", "--raw"), ("generate", "--raw", "-")):
        await command_line(*arguments, stdin="über\nlang\n", target=server.target)
    assert [spec.text for spec in server.service.seen] == ["über\nlang"] * 2


async def test_json_is_one_object_per_event(command_line, server):
    ended = await command_line("generate", "hi", "--json", "--max-tokens", "2", target=server.target)
    events = [json.loads(line) for line in ended.out.splitlines()]
    assert [event["event"] for event in events] == ["started", "delta", "delta", "finished"]
    assert events[1]["text"] == "100 " and events[3]["reason"] == "length"


async def test_json_without_stream_is_one_answer(command_line, server):
    ended = await command_line("generate", "hi", "--json", "--no-stream", target=server.target)
    answer = json.loads(ended.out)
    assert answer["choices"][0]["token_ids"] == [100, 101, 102, 103, 104] and answer["started"]["seed"] == 42
