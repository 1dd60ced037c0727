"""DeepSeek V3, R1 and V3.1: calls between tokens of their own; before V3.1 the arguments stand in a block of Markdown."""

from functools import partial

from clients.gateway.parsers.calls import CallableTool, CallFormat, CallGrammar, CallParser
from clients.gateway.parsers.pieces import MarkerSearch, Piece, TextBeforeCalls

CALLS_BEGIN, CALLS_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
CALL_BEGIN, CALL_END, SEPARATOR = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>"
_BLOCK_BEGIN, _BLOCK_END = "```json\n", "\n```"


class DeepSeekV3Parser(CallParser):
    """Tells by what follows the separator how the call is written: an object, or the name and a block."""

    def __init__(self) -> None:
        super().__init__(self._text)
        self._before = TextBeforeCalls(CALLS_BEGIN)
        self._between = MarkerSearch(CALL_BEGIN, CALLS_END)
        self._head_end = MarkerSearch(SEPARATOR)
        self._block = MarkerSearch(_BLOCK_BEGIN)
        self._arguments_end = MarkerSearch(_BLOCK_END, CALL_END)
        self._head = ""

    def _text(self, text: str) -> str:
        content, marker, rest = self._before.find(text)
        self.add_content(content)
        if marker:
            self.state = self._in_calls
        return rest

    def _in_calls(self, text: str) -> str:
        _, marker, rest = self._between.find(text)
        if marker:
            self._head = ""
            self.state = self._in_head if marker == CALL_BEGIN else self._text
        return rest

    def _in_head(self, text: str) -> str:
        head, marker, rest = self._head_end.find(text)
        self._head += head
        if marker:
            self.state = self._behind_separator
        return rest

    def _behind_separator(self, text: str) -> str:
        text = text.lstrip()
        if text.startswith("{"):
            self.start_call(self._head.strip())
            self.state = self._in_arguments
        elif text:
            self._head = ""
            self.state = self._in_name
        return text

    def _in_name(self, text: str) -> str:
        """The name, and the line that begins the block."""
        head, marker, rest = self._block.find(text)
        self._head += head
        if marker:
            self.start_call(self._head.strip())
            self.state = self._in_arguments
        return rest

    def _in_arguments(self, text: str) -> str:
        arguments, marker, rest = self._arguments_end.find(text)
        self.add_arguments(arguments)
        if marker:
            self.state = self._in_calls
        return rest

    def end(self) -> list[Piece]:
        """What was kept."""
        self.add_content(self._before.rest())
        return self.take()


def _grammar(grammar: CallGrammar, is_block: bool) -> str:
    call = grammar.one_of([_call(grammar, tool, is_block) for tool in grammar.tools])
    line_end = grammar.rule('"\\n"?')
    return f"{grammar.text(CALLS_BEGIN)} {grammar.repeated(call, line_end)} {grammar.text(CALLS_END)}"


def _call(grammar: CallGrammar, tool: CallableTool, is_block: bool) -> str:
    head = f"function{SEPARATOR}{tool.name}\n{_BLOCK_BEGIN}" if is_block else f"{tool.name}{SEPARATOR}"
    end = f"{_BLOCK_END}{CALL_END}" if is_block else CALL_END
    return f"{grammar.text(CALL_BEGIN + head)} {grammar.json(tool.schema)} {grammar.text(end)}"


_MARKERS = (CALLS_BEGIN, CALLS_END, CALL_BEGIN, CALL_END, SEPARATOR)
DEEPSEEK_V3 = CallFormat(lambda names: DeepSeekV3Parser(), partial(_grammar, is_block=True), _MARKERS, shows_special_tokens=True)
DEEPSEEK_V31 = CallFormat(lambda names: DeepSeekV3Parser(), partial(_grammar, is_block=False), _MARKERS, shows_special_tokens=True)
