"""Keys that callers must show, and the interceptor that asks for one."""

import hashlib
import hmac
import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from control_plane.edge.access.callers import CALLER, Caller, Metadata, parse_priorities
from control_plane.engine.ports import Quota
from pypto_serving.process.credentials.files import FileRefused, KeyLine, ReloadedFiles, parse_keys
from pypto_serving.process.health import HEALTH
from pypto_serving.process.reflection import REFLECTION_SERVICES

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_NUMBER = re.compile(r"[1-9][0-9]{0,8}")

#: Words behind a key, and the limits that they set.
_QUOTAS = {"tokens-per-minute": "tokens_per_minute", "requests": "max_requests"}

#: Open to everybody, if they are served at all: what probes and tools need.
_OPEN_SERVICES = tuple(f"/{service}/" for service in (HEALTH, *REFLECTION_SERVICES))

_REFUSAL = "this server asks for a key that it knows, as the header `authorization: Bearer KEY`"


class Keys:
    """The keys that one port accepts. How long a check takes says nothing about them."""

    def __init__(self, callers: Iterable[tuple[bytes, Caller]]) -> None:
        """Keys, and whom each of them stands for."""
        self._callers = tuple((hashlib.sha256(key).digest(), caller) for key, caller in callers)

    def caller(self, key: bytes) -> Caller | None:
        """Who shows a key; None if it is none of ours."""
        digest = hashlib.sha256(key).digest()
        # Compares all of them: the time that the first match takes would say which one it is.
        found = [caller for known, caller in self._callers if hmac.compare_digest(digest, known)]
        return found[0] if found else None


ReloadedKeys = ReloadedFiles[Keys]


def watch_keys(name: str, path: Path) -> ReloadedKeys:
    """Read a file of keys and go on watching it; raises StartUpError."""

    def parse(contents: Sequence[bytes]) -> Keys:
        return Keys(_callers(path, contents[0]).items())

    return ReloadedFiles(name, [path], parse)


def _callers(path: Path, content: bytes) -> dict[bytes, Caller]:
    """Keys and their callers; raises FileRefused for a key that stands for two, and for a name with two quotas of one kind."""
    callers: dict[bytes, Caller] = {}
    quotas: dict[str, Quota] = {}
    for line in parse_keys(path, content):
        caller = _caller(path, line)
        if callers.setdefault(line.key, caller) != caller:
            raise FileRefused(f"{path}, line {line.number}: this key stands in an earlier line too, with something else behind it")
        quotas[caller.name] = _joined(path, line, quotas.get(caller.name, Quota()), caller.quota)
    return {key: replace(caller, quota=quotas[caller.name]) for key, caller in callers.items()}


def _joined(path: Path, line: KeyLine, earlier: Quota, quota: Quota) -> Quota:
    """The quota of a name, of which a line may tell all, a part, or nothing."""
    told = {name: value for name, value in asdict(quota).items() if value is not None}
    if any(getattr(earlier, name) not in (None, value) for name, value in told.items()):
        raise FileRefused(f"{path}, line {line.number}: an earlier line of the same name has another {' or '.join(_QUOTAS)}")
    return replace(earlier, **told)


def _caller(path: Path, line: KeyLine) -> Caller:
    """The caller that a line describes; without a name its digest tells it apart. Nothing of the line is shown: it may be a secret."""
    options = dict(option.partition("=")[::2] for option in line.options)
    is_repeated = len(options) < len(line.options)
    given_name, priority = options.pop("name", None), options.pop("priority", None)
    quotas = {field: options.pop(option) for option, field in _QUOTAS.items() if option in options}
    name = "key-" + hashlib.sha256(line.key).hexdigest()[:16] if given_name is None else given_name
    if options or is_repeated or not _NAME.fullmatch(name):
        known = "name=NAME, of 1 to 64 letters, digits, _, . and -, priority=LOW..HIGH, tokens-per-minute=N and requests=N, each once"
        raise FileRefused(f"{path}, line {line.number}: behind a key may stand {known}")
    if not all(_NUMBER.fullmatch(value) for value in quotas.values()):
        raise FileRefused(
            f"{path}, line {line.number}: {' and '.join(_QUOTAS)} are numbers from 1 to 999999999; without one there is no limit"
        )
    quota = Quota(**{field: int(value) for field, value in quotas.items()})
    try:
        return Caller(name, parse_priorities(priority) if priority is not None else None, quota, given_name is not None)
    except ValueError as error:
        raise FileRefused(f"{path}, line {line.number}: priority: {error}") from None


class KeyInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]  # generic in the stubs only
    """Ends calls that show no valid key with UNAUTHENTICATED, all with the same words, before their message is read.

    It stands before all other interceptors; calls of our own services that it ends are reported to `observe_call`, which returns metadata
    that the refusal comes with.
    """

    def __init__(
        self, keys: ReloadedKeys, observe_call: "Callable[[str, grpc.StatusCode, grpc.aio.ServicerContext[Any, Any]], Metadata]"
    ) -> None:
        self._keys = keys
        self._observe_call = observe_call

    async def intercept_service(
        self,
        continuation: "Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any]]]",
        handler_call_details: grpc.HandlerCallDetails,
    ) -> "grpc.RpcMethodHandler[Any, Any]":
        """Let the call pass, or put a refusal in its place."""
        handler = await continuation(handler_call_details)
        path = handler_call_details.method
        if path.startswith(_OPEN_SERVICES):
            return handler
        if caller := self._keys.current().caller(_key(handler_call_details.invocation_metadata)):
            CALLER.set(caller)  # the task that we are in serves this call and no other
            return handler
        # Methods that do not exist are not counted: their names are the caller's.
        is_ours = handler is not None and path.startswith("/pypto_serving.")
        return self._refusing(path.rpartition("/")[2] if is_ours else None)

    def _refusing(self, counted_method: str | None) -> "grpc.RpcMethodHandler[Any, Any]":
        async def refuse(messages: object, context: "grpc.aio.ServicerContext[Any, Any]") -> None:
            code = grpc.StatusCode.UNAUTHENTICATED
            about_call = self._observe_call(counted_method, code, context) if counted_method is not None else ()
            await context.abort(code, _REFUSAL, about_call)

        # Whatever the method takes and gives: a handler of streams begins without waiting for a message.
        refusing: Any = refuse
        return grpc.stream_stream_rpc_method_handler(refusing)


def _key(metadata: Iterable[tuple[str, str | bytes]]) -> bytes:
    """The key that a call shows; empty, which no key is, without exactly one."""
    values = [value for name, value in metadata if name == "authorization"]
    if len(values) != 1:
        return b""
    value = values[0] if isinstance(values[0], bytes) else values[0].encode("utf-8", "surrogatepass")
    scheme, _, key = value.partition(b" ")
    return key if scheme.lower() == b"bearer" else b""
