"""How large a prompt may be before anything is copied, rendered or encoded."""

from dataclasses import dataclass

from control_plane.edge.service.errors import InvalidArgument


@dataclass(frozen=True, slots=True)
class PromptLimit:
    """Refuses what can not fit, at the cost of looking at a length. `reason` ends the message to the client."""

    tokens: int
    characters: int
    messages: int
    reason: str = ""

    def check_characters(self, field: str, size: int) -> None:
        """Require a text of at most so many characters; raises InvalidArgument."""
        if size > self.characters:
            raise InvalidArgument(f"{field} has {size} characters, may have at most {self.characters}{self.reason}")

    def check_messages(self, field: str, size: int) -> None:
        """Require a conversation of at most so many messages; raises InvalidArgument."""
        if size > self.messages:
            raise InvalidArgument(f"{field} has {size} entries, may have at most {self.messages}{self.reason}")

    def check_tokens(self, field: str, size: int) -> None:
        """Require a text, of which `size` tokens were found so far, to have at most so many; raises InvalidArgument."""
        if size > self.tokens:
            raise InvalidArgument(f"{field} has more than {self.tokens} tokens{self.reason}")


def context_prompt_limit(max_model_len: int, max_token_characters: int) -> PromptLimit:
    """The limit for prompts of a model: no token has more characters, and every template writes a token per message."""
    reason = f": a request may have {max_model_len} tokens, of at most {max_token_characters} characters each"
    return PromptLimit(max_model_len, max_model_len * max_token_characters, max_model_len, reason)
