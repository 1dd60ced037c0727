"""Thoughts between <think> and </think>, at the beginning of an answer."""

from clients.gateway.parsers.pieces import MarkerSearch, Piece, Reasoning, StateMachine

OPEN, CLOSE = "<think>", "</think>"


class ReasoningParser(StateMachine):
    """Parts thoughts from the answer. `is_open`: the prompt has begun them already."""

    def __init__(self, is_open: bool) -> None:
        super().__init__(self._thoughts if is_open else self._beginning)
        self._held = ""
        self._search = MarkerSearch(CLOSE)
        self._has_thoughts = False
        self.is_over = False

    def _beginning(self, text: str) -> str:
        """Blanks, and then thoughts or no thoughts."""
        self._held += text
        begun = self._held.lstrip()
        if begun.startswith(OPEN):
            self.state = self._thoughts
            return begun[len(OPEN) :]
        if OPEN.startswith(begun):
            return ""
        self._answer(self._held)
        return ""

    def _thoughts(self, text: str) -> str:
        if not self._has_thoughts:
            text = text.lstrip("\n")
        thought, marker, rest = self._search.find(text)
        self._think(thought)
        if marker:
            self.state = self._blanks
        return rest

    def _blanks(self, text: str) -> str:
        """The lines that part thoughts from answer belong to neither."""
        text = text.lstrip()
        if text:
            self._answer(text)
        return ""

    def _answer(self, text: str) -> str:
        self.is_over = True
        self.state = self._answer
        self.add_content(text)
        return ""

    def _think(self, thought: str) -> None:
        if thought:
            self._has_thoughts = True
            self.add(Reasoning(thought))

    def end(self) -> list[Piece]:
        """What was kept: thoughts that never ended, or text that looked like their beginning."""
        self._think(self._search.rest())
        if self.state == self._beginning:
            self.add_content(self._held)
        return self.take()
