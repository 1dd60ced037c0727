import json

import pytest

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


@pytest.mark.parametrize(
    ("flags", "kind", "value"),
    [
        (("--json-schema", '{"type": "object"}'), "json_schema", '{"type": "object"}'),
        (("--regex", "a+"), "regex", "a+"),
        (("--grammar", 'start: "a"'), "grammar", 'start: "a"'),
    ],
)
async def test_a_constraint_reaches_the_server(command_line, server, flags, kind, value):
    await command_line("generate", "hi", *flags, target=server.target)
    constraint = server.service.seen[0].constraint
    assert (constraint.WhichOneof("kind"), getattr(constraint, kind)) == (kind, value)


async def test_alternatives_reach_the_server(command_line, server):
    await command_line("generate", "hi", "--alternative", "yes", "--alternative", "no", target=server.target)
    assert list(server.service.seen[0].constraint.alternatives.texts) == ["yes", "no"]


async def test_a_constraint_can_stand_in_a_file(command_line, server, tmp_path):
    (tmp_path / "schema.json").write_text('{"const": "\u00fc"}', encoding="utf-8")
    await command_line("generate", "hi", "--json-schema", f"@{tmp_path}/schema.json", target=server.target)
    assert server.service.seen[0].constraint.json_schema == '{"const": "\u00fc"}'


async def test_two_constraints_are_bad_usage(command_line):
    ended = await command_line("generate", "hi", "--regex", "a", "--grammar", "b")
    assert ended.status == 2 and "--grammar: not allowed with argument --regex" in ended.err


async def test_tools_and_template_arguments_make_a_chat(command_line, server, tmp_path):
    function = {"name": "add", "description": "adds", "parameters": {"type": "object"}}
    (tmp_path / "tools.json").write_text(json.dumps([{"type": "function", "function": function}, {"name": "subtract"}]))
    arguments = ["enable_thinking=false", "depth=2", "share=0.5", "style=brief=yes", 'name="3"']
    flags = [flag for argument in arguments for flag in ("--template-arg", argument)]
    server.service.has_chat_template = False
    await command_line("generate", "hi", "--tools", str(tmp_path / "tools.json"), *flags, target=server.target)
    chat = server.service.seen[0].chat
    assert [(tool.name, tool.description, tool.parameters_schema) for tool in chat.tools] == [
        ("add", "adds", '{"type": "object"}'),
        ("subtract", "", ""),
    ]
    values = {name: getattr(value, value.WhichOneof("kind")) for name, value in chat.template_arguments.items()}
    assert values == {"enable_thinking": False, "depth": 2, "share": 0.5, "style": "brief=yes", "name": "3"}


async def test_tpl_07_a_template_argument_may_be_any_json(command_line, server):
    flags = ["--template-arg", 'builtin_tools=["a","b"]', "--template-arg", 'options={"x": null}', "--template-arg", "words=[a, b"]
    await command_line("generate", "hi", *flags, target=server.target)
    arguments = server.service.seen[0].chat.template_arguments
    assert [value.string_value for value in arguments["builtin_tools"].list_value.values] == ["a", "b"]
    assert arguments["options"].object_value.fields["x"].HasField("null_value") and arguments["words"].string_value == "[a, b"


async def test_tpl_09_flags_for_templates_make_a_chat(command_line, server, tmp_path):
    (tmp_path / "documents.json").write_text('[{"title": "t", "text": "x"}]')
    flags = ["--documents", str(tmp_path / "documents.json"), "--continue-from", "Well, ", "--literal-text"]
    server.service.has_chat_template = False
    await command_line("generate", "hi", *flags, target=server.target)
    chat = server.service.seen[0].chat
    assert [(message.role, message.content) for message in chat.messages] == [("user", "hi"), ("assistant", "Well, ")]
    assert chat.continue_final_message and chat.literal_text and chat.documents[0].fields["title"].string_value == "t"


@pytest.mark.parametrize("content", ["{", "[1]", "{}"])
async def test_documents_that_cannot_be_read_are_bad_usage(command_line, tmp_path, content):
    (tmp_path / "documents.json").write_text(content)
    ended = await command_line("generate", "hi", "--documents", str(tmp_path / "documents.json"))
    assert ended.status == 2 and "documents.json: must be a JSON list of objects" in ended.err


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (None, "No such file"),
        ("{", "must be a JSON list"),
        ('{"a": 1}', "must be a JSON list"),
        ('[{"function": {}}]', "must be a JSON list"),
    ],
)
async def test_tools_that_cannot_be_read_are_bad_usage(command_line, tmp_path, content, complaint):
    if content is not None:
        (tmp_path / "tools.json").write_text(content)
    ended = await command_line("generate", "hi", "--tools", str(tmp_path / "tools.json"))
    assert ended.status == 2
    assert f"argument --tools: {tmp_path}/tools.json: " in ended.err and complaint in ended.err


async def test_a_template_argument_without_a_value_is_bad_usage(command_line):
    ended = await command_line("generate", "hi", "--template-arg", "enable_thinking")
    assert ended.status == 2 and "'enable_thinking' is not KEY=VALUE" in ended.err


@pytest.mark.parametrize("flags", [(), ("--no-stream",)])
async def test_prompt_logprobs_come_first(command_line, server, flags):
    ended = await command_line("generate", "hi", "--prompt-logprobs", "1", *flags, target=server.target)
    assert server.service.seen[0].output.prompt_logprobs == 1
    lines = ended.out.splitlines()
    assert (len(lines), lines[0].split()[0], lines[3]) == (4, "-", "100 101 102 103 104 ")


@pytest.mark.parametrize("command", ["generate", "tokenize"])
async def test_no_prompt_is_bad_usage(command_line, server, command):
    ended = await command_line(command, target=server.target)
    assert (ended.status, "there is none, and standard input is empty" in ended.err, server.service.seen) == (2, True, [])
