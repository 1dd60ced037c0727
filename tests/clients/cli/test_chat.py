import grpc
from fakes.control_plane.inference_service import StreamFault


async def test_piped_lines_are_turns_of_one_conversation(command_line, server):
    ended = await command_line("chat", "--system", "s", "--max-tokens", "1", stdin="one\n\ntwo\n/new\nthree\n", target=server.target)
    assert (ended.status, ended.out) == (0, "100 \n" * 3)
    contents = [[message.content for message in spec.chat.messages] for spec in server.service.seen]
    assert contents == [["s", "one"], ["s", "one", "100 ", "two"], ["s", "three"]]


async def test_failed_turn_ends_a_piped_conversation(command_line, server):
    server.service.faults.append(StreamFault(grpc.StatusCode.ABORTED, 1))
    ended = await command_line("chat", stdin="one\ntwo\n", target=server.target)
    assert ended.status == 1
    assert len(server.service.seen) == 1
