"""The control planes behind the gateway: which of them serve which model, and clients of them."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeVar

import grpc

from clients.async_client import AsyncClient
from clients.connection import Credentials
from clients.errors import ServerUnreachable, ServingError
from clients.gateway.errors import ApiError
from clients.gateway.models import ModelProfile
from clients.gateway.parsers.answer import FORMATS, format_of
from clients.gateway.parsers.reasoning import CLOSE, OPEN
from clients.reconnection import Targets
from clients.request import Request
from clients.results import Model
from pypto_serving.process.connection_problems import connection_problem
from pypto_serving.process.trouble_log import TroubleLog

_log = logging.getLogger(__name__)

R = TypeVar("R")

_CHECK_SECONDS = 2.0
_PROBE_SECONDS = 1.0
#: A little longer than it takes to say why nobody can be reached: for one that has been reached, and does not answer.
_ANSWER_SECONDS = 2.0
#: An unknown model is looked for no more often.
_LOOK_SECONDS = 1.0

_NO_ANSWER, _NOT_SERVING = "no answer", "it answers, and does not serve: `pypto-serving health` says why"


@dataclass(frozen=True, slots=True)
class ControlPlaneOptions:
    """How control planes are called. `tool_parser` is a name of FORMATS, empty: by architecture."""

    targets: Sequence[str]
    connect_seconds: float = 5.0
    resume_seconds: float = 60.0
    credentials: Credentials = field(default_factory=Credentials)
    tool_parser: str = ""
    parses_reasoning: bool = True


class SharedTargets(Targets):
    """New requests begin at usable servers in turn, at any where none is known to be usable."""

    def __init__(self, address: str) -> None:
        self._turn = 0
        self.usable: set[str] = set()
        super().__init__(address)

    def add(self, address: str) -> None:
        """Add an address; those of live requests stay in their places."""
        if address not in self.addresses:
            self.addresses = (*self.addresses, address)

    @property
    def preferred(self) -> int:
        self._turn += 1
        usable = [index for index, address in enumerate(self.addresses) if address in self.usable] or range(len(self.addresses))
        return usable[self._turn % len(usable)]

    @preferred.setter
    def preferred(self, index: int) -> None:
        """A server that has just answered says nothing about the next request."""


class ServedModel:
    """A model, the servers that serve it, and a client that calls them."""

    def __init__(self, model: Model, target: str, options: ControlPlaneOptions) -> None:
        self.model = model
        self.targets = SharedTargets(target)
        limits = {"connect_seconds": options.connect_seconds, "resume_seconds": options.resume_seconds}
        self.client = AsyncClient(self.targets, credentials=options.credentials, **limits)
        self._options = options
        self._profiles: dict[str, ModelProfile] = {}

    async def profile(self, client: AsyncClient) -> ModelProfile:
        """How the model writes; asked for once for each of its fingerprints."""
        fingerprint = self.model.fingerprint
        if fingerprint not in self._profiles:
            self._profiles = {fingerprint: await self._find_profile(client)}
        return self._profiles[fingerprint]

    async def _find_profile(self, client: AsyncClient) -> ModelProfile:
        call_format = FORMATS[self._options.tool_parser or format_of(self.model.architecture)]
        markers = (*call_format.markers, OPEN, CLOSE)
        answers = await asyncio.gather(*(client.tokenize_prompt(Request(marker), add_special_tokens=False) for marker in markers))
        ids = {marker: tokens.token_ids[0] for marker, tokens in zip(markers, answers, strict=True) if len(tokens.token_ids) == 1}
        end_texts = await asyncio.gather(*(client.detokenize([token_id]) for token_id in self.model.end_token_ids))
        return ModelProfile(call_format, ids, tuple(text for text in end_texts if text), self._options.parses_reasoning)


class ControlPlanes:
    """Knows by asking; all its methods run on one event loop.

    Health is asked for every two seconds and needs no key. Models are asked for with the key of whoever wants one that is not known.
    """

    def __init__(self, options: ControlPlaneOptions) -> None:
        self._options = options
        self._probes = {target: self._probe(target) for target in options.targets}
        self._served: dict[str, ServedModel] = {}
        self._serving: set[str] = set()
        self._troubles = dict.fromkeys(options.targets, "nobody has asked it yet")  # of those that do not serve
        self._trouble_logs = {target: TroubleLog(_log) for target in options.targets}
        self._looked_at = float("-inf")
        self._reached: set[str] = set()  # at any time
        self._checking: list[asyncio.Task[None]] = []

    def _probe(self, target: str) -> AsyncClient:
        return AsyncClient(target, connect_seconds=_PROBE_SECONDS, resume_seconds=0, credentials=self._options.credentials)

    async def start(self) -> None:
        """Look once, and begin to look again and again."""
        await asyncio.gather(*map(self._check, self._probes))
        with suppress(ServingError):
            await self.models(None)
        self._checking = [asyncio.create_task(self._keep_checking(target)) for target in self._probes]

    async def close(self) -> None:
        """Close all connections."""
        for checking in self._checking:
            checking.cancel()
        for client in (*self._probes.values(), *(served.client for served in self._served.values())):
            await client.close()

    @property
    def trouble(self) -> str:
        """Why no control plane would take a request; empty if one would."""
        why = "; ".join(f"{target}: {trouble}" for target, trouble in self._troubles.items())
        return "" if self._serving else f"no control plane serves: {why}"

    async def models(self, api_key: str | None) -> list[Model]:
        """All models, by name; raises ServingError when nobody tells any."""
        asked = sorted(self._serving) or list(self._probes)
        calls = (_in_time(target, self._probes[target].with_api_key(api_key).models()) for target in asked)
        answers = await asyncio.gather(*calls, return_exceptions=True)
        errors = [answer for answer in answers if isinstance(answer, BaseException)]
        for target, models in zip(asked, answers, strict=True):
            if not isinstance(models, BaseException):
                self._note(target, models)
        if len(errors) == len(answers):
            raise next((error for error in errors if _is_about_keys(error)), errors[0])
        self._looked_at = time.monotonic()
        names = {model.name: model for models in answers if not isinstance(models, BaseException) for model in models}
        return [names[name] for name in sorted(names)]

    async def served(self, name: str, api_key: str | None) -> ServedModel:
        """A model by its name, or the only one for an empty name; raises ServingError or ApiError."""
        if not self._find(name) and time.monotonic() - self._looked_at > _LOOK_SECONDS:
            await self.models(api_key)
        found = self._find(name)
        if found is not None:
            return found
        known = ", ".join(sorted(self._served)) or "none"
        if not name:
            raise ApiError(400, f"model is missing; served: {known}", param="model", code="missing_required_parameter")
        raise ApiError(404, f"model {name!r} is not served; served: {known}", param="model", code="model_not_found")

    def _find(self, name: str) -> ServedModel | None:
        if name:
            return self._served.get(name)
        return next(iter(self._served.values())) if len(self._served) == 1 else None

    def _note(self, target: str, models: Sequence[Model]) -> None:
        for model in models:
            served = self._served.get(model.name) or self._served.setdefault(model.name, ServedModel(model, target, self._options))
            served.model = model
            served.targets.add(target)
        for name, served in self._served.items():
            is_usable = target in self._serving and any(model.name == name for model in models)
            (served.targets.usable.add if is_usable else served.targets.usable.discard)(target)

    async def _keep_checking(self, target: str) -> None:
        while True:
            await asyncio.sleep(_CHECK_SECONDS)
            try:
                await self._check(target)
            except Exception:
                _log.exception("a defect of the gateway, in a check of a control plane", extra={"target": target})

    async def _check(self, target: str) -> None:
        trouble, log = await self._trouble_at(target), self._trouble_logs[target]
        if trouble:
            self._troubles[target] = trouble
            log.note(f"control plane {target}: {trouble}", is_missing=trouble in (_NO_ANSWER, _NOT_SERVING))
        elif self._troubles.pop(target, None):
            log.reached()
            _log.info("control plane serves", extra={"target": target})
        self._note_serving(target, not trouble)

    async def _trouble_at(self, target: str) -> str:
        """Why a control plane would not take a request; empty if it would."""
        try:
            is_serving = await _in_time(target, self._probes[target].is_serving())
        except ServerUnreachable as error:
            return connection_problem(error.message, target in self._reached) or _NO_ANSWER
        except ServingError as error:
            return f"{error.code.name}: {error.message}"
        self._reached.add(target)
        return "" if is_serving else _NOT_SERVING

    def _note_serving(self, target: str, is_serving: bool) -> None:
        (self._serving.add if is_serving else self._serving.discard)(target)
        for served in self._served.values():
            if is_serving and target in served.targets.addresses:
                served.targets.usable.add(target)
            elif not is_serving:
                served.targets.usable.discard(target)


async def _in_time(target: str, answer: Awaitable[R]) -> R:
    """The answer of a control plane; raises ServerUnreachable where none comes."""
    try:
        async with asyncio.timeout(_ANSWER_SECONDS):
            return await answer
    except TimeoutError:
        raise ServerUnreachable(grpc.StatusCode.UNAVAILABLE, f"no answer from {target} within {_ANSWER_SECONDS:g} s") from None


def _is_about_keys(error: BaseException) -> bool:
    return isinstance(error, ServingError) and error.code is grpc.StatusCode.UNAUTHENTICATED
