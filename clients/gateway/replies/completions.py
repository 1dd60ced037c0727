"""Answers of /v1/completions."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from clients.gateway.replies.parts import DONE, ReplyHead, StreamedReply, UsageSum, quoted, token_text, usage_shape
from clients.gateway.replies.shapes import CompletionChoice, CompletionLogprobs, TextCompletion
from clients.results import Completion, Delta, Event, Finished, PromptLogprobs, TokenLogprob


class LogprobColumns:
    """OpenAI's columns; offsets go on from event to event. `num_top`: how many alternatives were asked for."""

    def __init__(self, num_top: int) -> None:
        self._num_top = num_top
        self._offset = 0

    def of(self, entries: Iterable[TokenLogprob]) -> CompletionLogprobs:
        """Columns of further tokens."""
        columns: CompletionLogprobs = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        for entry in entries:
            text = token_text(entry.token)
            columns["tokens"].append(text)
            columns["token_logprobs"].append(entry.logprob)
            columns["top_logprobs"].append(self._top(entry))
            columns["text_offset"].append(self._offset)
            self._offset += len(text)
        return columns

    def _top(self, entry: TokenLogprob) -> dict[str, float] | None:
        if entry.logprob is None:
            return None
        if not self._num_top:
            return {}
        return {token_text(top.token): top.logprob for top in entry.top} | {token_text(entry.token): entry.logprob}


@dataclass(frozen=True, slots=True)
class CompletionOptions:
    """What the body asked for beside text: `num_top` alternatives, None without log probabilities; the texts of prompts to be repeated."""

    num_choices: int
    num_top: int | None
    echoes: Sequence[str] = ()
    include_usage: bool = False


@dataclass(slots=True)
class _StreamedChoice:
    columns: LogprobColumns
    has_begun: bool = False


class CompletionStream(StreamedReply[Event | tuple[int, Event]]):
    """Turns the events of several prompts into those of one SSE stream; choice i of prompt p has the index p * n + i."""

    def __init__(self, head: ReplyHead, num_prompts: int, options: CompletionOptions) -> None:
        self._begin = "data: {" + head.json("text_completion")
        self._options = options
        self._usage_null = ',"usage":null' if options.include_usage else ""
        self._usage = UsageSum()
        self._prompt_logprobs: list[list[TokenLogprob]] = [[] for _ in range(num_prompts)]
        num_choices = num_prompts * options.num_choices
        self._choices = [_StreamedChoice(LogprobColumns(options.num_top or 0)) for _ in range(num_choices)]

    def event(self, event: Event | tuple[int, Event]) -> str:
        """The events for one of a prompt's, which comes with the index of its prompt where there are several."""
        prompt, event = event if isinstance(event, tuple) else (0, event)
        match event:
            case PromptLogprobs():
                self._prompt_logprobs[prompt] += event.entries
                return ""
            case Delta():
                return self._told(prompt, event.choice, event.text, event.logprobs)
            case Finished():
                self._usage.add(event, prompt)
                return self._told(prompt, event.choice, "", (), f'"{event.reason}"')
        return ""

    def end(self) -> str:
        """The last events."""
        if not self._options.include_usage:
            return DONE
        return f'{self._begin},"choices":[],"usage":{json.dumps(usage_shape(self._usage.total))}}}\n\n{DONE}'

    def _told(self, prompt: int, choice: int, text: str, entries: Sequence[TokenLogprob], reason: str = "null") -> str:
        index = prompt * self._options.num_choices + choice
        streamed = self._choices[index]
        if not streamed.has_begun and self._options.echoes:
            text = self._options.echoes[prompt] + text
            entries = (*self._prompt_logprobs[prompt], *entries)
        streamed.has_begun = True
        if not text and not entries and reason == "null":
            return ""
        logprobs = "null" if self._options.num_top is None or not entries else json.dumps(streamed.columns.of(entries))
        chosen = f'{{"index":{index},"text":{quoted(text)},"logprobs":{logprobs},"finish_reason":{reason}}}'
        return f'{self._begin},"choices":[{chosen}]{self._usage_null}}}\n\n'


def text_completion(head: ReplyHead, completions: Sequence[Completion], options: CompletionOptions) -> TextCompletion:
    """The whole answers to all prompts."""
    usage = UsageSum()
    choices: list[CompletionChoice] = []
    for prompt, completion in enumerate(completions):
        echo = options.echoes[prompt] if options.echoes else ""
        for choice in completion.choices:
            usage.add(Finished(choice.index, choice.finish_reason, choice.matched, choice.usage, choice.timing), prompt)
            entries = (*(completion.prompt_logprobs if options.echoes else ()), *choice.logprobs)
            choices.append(
                {
                    "index": prompt * options.num_choices + choice.index,
                    "text": echo + choice.text,
                    "logprobs": None if options.num_top is None else LogprobColumns(options.num_top).of(entries),
                    "finish_reason": str(choice.finish_reason),
                }
            )
    return {
        "id": head.id,
        "object": "text_completion",
        "created": head.created,
        "model": head.model,
        "system_fingerprint": head.fingerprint,
        "choices": choices,
        "usage": usage_shape(usage.total),
    }
