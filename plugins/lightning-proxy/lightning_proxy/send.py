"""Sends a call to a backend: to which replica, with which body, and whether it is tried again."""

import asyncio
import dataclasses
import logging
import math
import random
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from lightning_core.runner.clients import asked_seconds
from lightning_core.secrets import hide_in_text
from lightning_core.store.clock import Clock
from lightning_proxy.admit import Limiter
from lightning_proxy.answer import mapping
from lightning_proxy.apis import DIALECTS, ConvertibleDialect, Dialect
from lightning_proxy.apis.chat import CHAT
from lightning_proxy.backend import (
    BackendAnswer,
    BackendBroke,
    BackendRequest,
    BackendTimeout,
    BackendUnavailable,
    WholeAnswer,
)
from lightning_proxy.call import Call
from lightning_proxy.jsons import dump
from lightning_proxy.models import Models
from lightning_proxy.replicas import Replica, Replicas
from lightning_proxy.request import Refused
from lightning_proxy.settings import Settings

logger = logging.getLogger(__name__)

_RETRIED = frozenset({429, 502, 503, 504})
FIRST_PAUSE_SECONDS = 0.25
"""Before the first new try; twice as long before each further one."""
_LONGEST_PAUSE_SECONDS = 30.0
_LONGEST_ASKED_SECONDS = 2.0
"""A backend that asks for a longer wait is tried again by the client, which knows how long it can wait."""
_BLIP_SECONDS = 2.0
"""A backend that has been out of reach for longer is tried once by each call."""
_RETRIES_TAKEN = "x-stainless-retry-count"
_CLIENT_TIMEOUTS = ("x-stainless-timeout", "x-stainless-read-timeout")
"""What the clients of OpenAI and Anthropic say of themselves: how often they tried already, and how long they wait."""
_PASSED_ON = frozenset(
    {
        *("content-type", "accept", "anthropic-version", "anthropic-beta", "openai-beta", "idempotency-key"),
        *(_RETRIES_TAKEN, *_CLIENT_TIMEOUTS),
    }
)
_PASSED_ON_CONVERTED = frozenset({"content-type", "accept", "idempotency-key"})


@dataclass(eq=False)
class _TryAgain(Exception):
    """A try that failed before anything was answered."""

    refused: Refused
    is_last: bool
    """Whether another try at the same one would not help."""
    asked_seconds: float | None = None
    """The wait that the backend asks for; None for the usual pause."""
    response: "Response | None" = None
    """What the backend said, in one piece."""


@dataclass(frozen=True, slots=True)
class Response:
    """A backend's answer that has begun."""

    answer: BackendAnswer
    replica: Replica
    dialect: Dialect | None
    """The API that it speaks; None for a call that passes through as it is."""
    conversion: ConvertibleDialect | None = None
    """By which the call was made one of that API; None where it came as one."""
    added: dict[str, Any] = field(default_factory=dict)
    """The fields of the request that the agent did not send."""


_Outgoing = tuple[BackendRequest, Dialect | None, ConvertibleDialect | None]
"""A call as a replica gets it, the API that it speaks, and by which it was made one of that."""


class Sender:
    """Sends calls.

    Args:
        replicas: Where to.
        models: The parameters of each model.
        limiter: Takes a call out of flight while it waits for another try.
        clock: The time.
        settings: How often a call is tried again.
    """

    def __init__(self, replicas: Replicas, models: Models, limiter: Limiter, clock: Clock, settings: Settings) -> None:
        self.weight_version: str | None = None
        """The version of the weights that calls are sent to."""
        self._replicas = replicas
        self._models = models
        self._limiter = limiter
        self._clock = clock
        self._retries = settings.num_retries
        self._warned: set[tuple[str, str]] = set()
        """What a warning told of that calls go on without."""

    async def send(self, call: Call) -> Response:
        """Send a call until a backend of its model answers it, or another try would not help.

        A client that tries again by itself, and a backend that asks for a long wait, leave no other try to the proxy:
        else each would multiply those of the other. Another replica is tried at once all the same.

        Returns:
            The answer, whatever its status. The caller calls `end` of the replicas when it is over, and before that
            `record_success` or `record_failure`.

        Raises:
            Refused: When there is no answer.
        """
        route, tried, tries = call.route, set[Replica](), 0
        while True:
            tries += 1
            try:
                return await self._try(call, tried)
            except _TryAgain as exc:
                is_elsewhere = call.pinned is None and self._replicas.has_other(route.target, tried)
                if route.replica is not None and not is_elsewhere:  # the next round begins with another one
                    tried = {route.replica}
                route.is_sent = False
                self._limiter.park(call)
                wait = 0.0 if is_elsewhere and tries <= self._retries else self._wait_seconds(call, exc, tries)
                if wait is None:
                    if exc.response is None:
                        raise exc.refused from exc
                    self._replicas.begin(exc.response.replica)
                    return exc.response  # the backend's own words say most
            await asyncio.sleep(wait)
            await self._limiter.reacquire(call)

    def _outgoing(self, call: Call, replica: Replica) -> _Outgoing:
        """Return a call as a replica is to get it, but for what the proxy adds.

        Raises:
            Refused: When the replica speaks chat alone, which cannot say what the agent asks.
        """
        route, request = call.route, call.request
        path, query, fields, body, dialect = call.path, request.query, route.fields, route.body, call.dialect
        conversion = None
        if isinstance(dialect, ConvertibleDialect) and (replica.converts or dialect.is_always_converted):
            conversion = dialect
        if conversion is not None and fields is not None:
            asked, route.dropped_tools = conversion.without_hosted_tools(fields)
            asked, route.ignored = conversion.without_hints(asked)
            self._tell("lightning.tool_dropped type", route.dropped_tools, replica, "a tool that a provider runs")
            self._tell("lightning.parameter_ignored name", route.ignored, replica, "a field that chat does not have")
            # Once more, for an effort that is Anthropic's default, and so is left out; what an agent says stays.
            fields = self._models.with_params(route.target, CHAT, conversion.to_chat(asked))
            effort = mapping(asked.get("output_config")).get("effort")
            if effort is not None and "reasoning_effort" in fields:
                fields["reasoning_effort"] = effort
            if not fields.get("tools"):  # Codex chooses one of none when it compacts, which vLLM refuses
                fields.pop("tool_choice", None)
            path, query, dialect = CHAT, "", DIALECTS[CHAT]
        if fields is not None and fields.get("model", replica.model) != replica.model:
            fields = {**fields, "model": replica.model}
        if fields is not route.fields:
            body = dump(fields)
        passed = _PASSED_ON if conversion is None else _PASSED_ON_CONVERTED
        headers = [(name, value) for name, value in request.headers.items() if name in passed]
        outgoing = BackendRequest(request.method, path, query, headers, body, fields, call.attempt_id)
        return outgoing, dialect, conversion

    def _tell(self, event: str, names: Sequence[str], replica: Replica, what: str) -> None:
        """Log once what the engine of a model does not have: calls go on without it, and their spans say so."""
        for name in names:
            if (event, name) not in self._warned:
                self._warned.add((event, name))
                without = "calls of this model's engine go on without it, and their spans say so"
                logger.warning("%s=%s model=%s: the agent sends %s; %s", event, name, replica.model_name, what, without)

    async def _try(self, call: Call, tried: set[Replica]) -> Response:
        """Send a call once, to a replica that is not among those tried, where there is one, and add it to them."""
        if call.pinned is not None and call.pinned not in self._replicas.all:
            message = "the response was stored by a backend that is not in the model list any more"
            raise Refused(404, "response_not_found", message)
        route = call.route
        replica = call.pinned or self._replicas.place(route.target, call.attempt_id, tried=tried)
        tried.add(replica)
        outgoing = self._outgoing(call, replica)
        route.tries += 1
        route.replica, route.is_sent, route.weight_version = replica, True, self.weight_version
        self._replicas.begin(replica)
        try:
            response = await self._ask(outgoing, replica)
            replica.has_answered = True
            await self._check_status(response)
        except BaseException as exc:
            self._replicas.end(replica)
            if isinstance(exc, BackendUnavailable):
                reason = hide_in_text(str(exc))
                self._replicas.record_failure(replica, reason, is_dead=True)
                if not replica.has_answered:
                    reason += "; it has not answered any call yet"
                refused = Refused(503, "backend_unavailable", reason, retry_after=1.0 if replica.has_answered else None)
                is_last = self._clock.now() - replica.down_since > _BLIP_SECONDS
                raise _TryAgain(refused, is_last=is_last) from exc
            if isinstance(exc, BackendTimeout | BackendBroke):
                refused = refusal_of(exc)
                self._replicas.record_failure(replica, refused.message, is_dead=False)
                raise refused from exc
            raise
        return response

    async def _ask(self, outgoing: _Outgoing, replica: Replica) -> Response:
        """Send a call; once more without what the proxy asks for besides, where the backend refuses that."""
        request, dialect, conversion = outgoing
        added: dict[str, Any] = {}
        if dialect is not None and request.fields is not None:
            added = dialect.additions(request.fields, tokens=replica.backend.gives_tokens)
        answer = await replica.backend.send(_with(request, added))
        if answer.status in (400, 422) and added:
            answer = await _read(answer)
            body = await answer.read()
            # It may not know these fields, or only repeat a request that it refuses for another reason.
            if named := [name for name in added if name.encode() in body]:
                added = {name: value for name, value in added.items() if name not in named}
                answer = await replica.backend.send(_with(request, added))
                if answer.status < 400 and not replica.refuses_fields:
                    replica.refuses_fields = True
                    logger.warning(
                        "lightning.backend_refuses_fields backend=%s fields=%s; calls go on without them, each after "
                        "another try, and without the tokens that they ask for",
                        replica.backend.address,
                        ",".join(named),
                    )
        return Response(answer, replica, dialect, conversion, added)

    async def _check_status(self, response: Response) -> None:
        """Record what an answer's status says of its replica.

        Raises:
            _TryAgain: When it asks for another try; it is read, for it may be the last.
            Refused: When it leads elsewhere.
        """
        answer, replica = response.answer, response.replica
        status = answer.status
        if status == 429:
            self._replicas.record_success(replica)  # it lives
        elif status >= 500:
            self._replicas.record_failure(replica, f"it answered {status}", is_dead=False)
        else:
            self._replicas.record_answer(replica)
        if status in _RETRIED:
            kind = "rate_limited" if status == 429 else "backend_unavailable"
            raise _TryAgain(
                Refused(status, kind, f"{replica.backend.address} answered {status}", retry_after=1.0),
                is_last=answer.header("x-should-retry") == "false",
                asked_seconds=asked_seconds(answer.header),
                response=dataclasses.replace(response, answer=await _read(answer)),
            )
        if 300 <= status < 400:
            await answer.aclose()
            # The agent would follow it past the proxy, to where nothing is recorded or counted.
            message = f"{replica.backend.address} answered {status}, which leads elsewhere; give the api_base that it"
            raise Refused(502, "backend_redirects", f"{message} leads to")

    def _wait_seconds(self, call: Call, failed: _TryAgain, tries: int) -> float | None:
        """Return how long to wait for another try at the same replica; None where there is to be none."""
        headers, asked = call.request.headers, failed.asked_seconds
        if tries > self._retries or failed.is_last or headers.get(_RETRIES_TAKEN, "0") != "0":
            return None
        if asked is None:
            jitter = random.uniform(0, FIRST_PAUSE_SECONDS)
            asked = FIRST_PAUSE_SECONDS * 2 ** min(tries - 1, 10) + jitter
            asked = min(asked, _LONGEST_PAUSE_SECONDS)
        elif asked > _LONGEST_ASKED_SECONDS:
            return None
        waits = [_number(headers.get(name, "")) or math.inf for name in _CLIENT_TIMEOUTS]
        return asked if call.seconds() + asked < min(waits) else None


async def _read(answer: BackendAnswer) -> WholeAnswer:
    try:
        return WholeAnswer(answer.status, await answer.read(), answer.headers)
    finally:
        await answer.aclose()


def _number(text: str) -> float | None:
    """Return a number of 0 or more; None for any other text."""
    with suppress(ValueError):
        if math.isfinite(number := float(text)) and number >= 0:
            return number
    return None


def refusal_of(error: Exception) -> Refused:
    """Return the error that an agent gets of a backend that failed and is not asked again."""
    message = hide_in_text(str(error))
    if isinstance(error, BackendTimeout):
        return Refused(504, "backend_timeout", message)
    return Refused(502, "backend_broke", message)


def _with(request: BackendRequest, added: dict[str, Any]) -> BackendRequest:
    """Add fields to a JSON object; what it has is not written anew where that can be avoided."""
    if not added or request.fields is None:
        return request
    fields = {**request.fields, **added}
    if len(fields) > len(added) and len(fields) == len(added) + len(request.fields):
        start = request.body.index(b"{") + 1
        return dataclasses.replace(request, fields=fields, body=b"{" + dump(added)[1:-1] + b"," + request.body[start:])
    return dataclasses.replace(request, fields=fields, body=dump(fields))
