"""Bodies of /v1/completions."""

from typing import Annotated

from pydantic import Field

from clients.gateway.schemas.common import Count, Generation, TokenId

TokenIds = Annotated[list[TokenId], Field(min_length=1)]


class CompletionRequest(Generation):
    """A prompt, or several: each a text or token ids."""

    prompt: str | Annotated[list[str], Field(min_length=1)] | TokenIds | Annotated[list[TokenIds], Field(min_length=1)]
    logprobs: Count | None = Field(None, description="How many alternatives are told at each position.")
    echo: bool | None = None
    best_of: Count | None = Field(None, description="Must equal n: nothing is ranked.")
    suffix: None = Field(None, description="Not supported.")

    @property
    def prompts(self) -> list[str | list[int]]:
        """The prompts, each a text or token ids."""
        prompt = self.prompt
        if isinstance(prompt, str):
            return [prompt]
        if isinstance(prompt[0], int):
            return [[token for token in prompt if isinstance(token, int)]]
        return [entry for entry in prompt if not isinstance(entry, int)]
