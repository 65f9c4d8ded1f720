"""Hands a backend's answer to the agent, and has it read: in one piece, as a stream, or as it is."""

import asyncio
import re
from collections.abc import Sequence
from typing import Any

from lightning_proxy.answer import failure_of, objects
from lightning_proxy.apis import Assembler, Dialect
from lightning_proxy.apis.base import Fields
from lightning_proxy.apis.conversion import ChatStream
from lightning_proxy.apis.responses import StoredResponses
from lightning_proxy.backend import BackendBroke
from lightning_proxy.call import Call
from lightning_proxy.jsons import dump, parse_object, text
from lightning_proxy.replicas import Replicas
from lightning_proxy.request import ANTHROPIC_TYPES, TOO_LONG, Refused
from lightning_proxy.send import Response
from lightning_proxy.sse import DONE, EventReader, NoEventStream, ServerEvent

_LONGEST_TEXT = 4096
"""So many bytes of an error that is not JSON are passed on: it may be a page."""
_SHOWN_BYTES = 200
_OVERFLOW = re.compile(r"maximum context length is (\d+) tokens.*?(\d+)(?: input tokens| in the messages)", re.DOTALL)
"""How vLLM, and `TokensBackend`, say that a conversation is too long."""
_NAME = re.compile(r"[\w.-]{1,64}")


async def hand_back(call: Call, response: Response, replicas: Replicas, stored: StoredResponses) -> None:
    """Hand an answer to the agent, and read it into the call.

    Args:
        call: The call.
        response: The answer.
        replicas: Is told where a response is stored.
        stored: Keeps what was converted.

    Raises:
        Refused: When it cannot be understood.
        BackendBroke: When it breaks off.
        BackendTimeout: When it does not go on.
        ClientGone: When the agent does not take it.
    """
    if call.dialect is None:
        await _pass_through(call, response)
    elif response.answer.status >= 400:
        await _Relay(call, response, call.dialect, replicas, stored).hand_back_error()
    elif response.answer.header("content-type").startswith("text/event-stream"):
        await _StreamRelay(call, response, call.dialect, replicas, stored).run()
    else:
        await _Relay(call, response, call.dialect, replicas, stored).hand_back_whole()
    if call.outcome.answer.failure is not None:
        call.outcome.fail("backend_error", response.replica.hide_keys(call.outcome.answer.failure))


async def _pass_through(call: Call, response: Response) -> None:
    answer, request = response.answer, call.request
    if answer.status >= 400:
        body = response.replica.hide_keys_in(await answer.read())
        await request.respond(answer.status, body, _headers_of(response))
        return
    await request.start_stream(answer.status, _headers_of(response))
    async for piece in answer.pieces():
        await request.send_piece(piece)
    await request.end_stream()


class _Relay:
    """Hands on an answer in one piece, and keeps what an agent may name later, before it can."""

    def __init__(
        self, call: Call, response: Response, dialect: Dialect, replicas: Replicas, stored: StoredResponses
    ) -> None:
        fields = call.route.fields or {}
        self._call, self._response, self._dialect = call, response, dialect
        self._backends = response.dialect or dialect
        """The API that the backend speaks."""
        self._replica = response.replica
        self._address = response.replica.backend.address
        self._conversion = None if response.conversion is None else response.conversion.stream(fields)
        """By which the answer becomes one of the agent's API."""
        self._is_kept = dialect.is_stored and fields.get("store") is not False
        self._wants_id = self._is_kept and response.conversion is None
        """Whether the backend stores the response, and it is not known yet under which id."""
        self._replicas, self._stored = replicas, stored

    async def hand_back_error(self) -> None:
        """Hand on an error, in the form of the agent's API."""
        status, headers, outcome = self._response.answer.status, _headers_of(self._response), self._call.outcome
        body = await self._response.answer.read()
        outcome.status, outcome.size = status, len(body)
        body = self._replica.hide_keys_in(body)
        fields, conversion = parse_object(body), self._response.conversion
        if fields is not None and "error" in fields:  # in the form that agents understand
            error = fields["error"]
            message = str(error.get("message") if isinstance(error, dict) else error)
            outcome.error_code = _error_code(error)
            if conversion is not None:
                if match := _OVERFLOW.search(message):
                    most, tokens = map(int, match.groups())
                    message = conversion.overflow(message, tokens, most, self._call.route.fields or {})
                    outcome.error_code = TOO_LONG
                body = self._error(status, message, outcome.error_code or "backend_error")
        else:
            message = _words_of(fields, body) or f"{self._address} answered {status} without a word"
            reply = {} if fields is None or conversion is not None else fields
            body = dump({**reply, **self._dialect.error(Refused(status, "backend_error", message))})
            headers = [header for header in headers if header[0] != b"content-type"]
            headers.append((b"content-type", b"application/json"))
        outcome.fail(str(status), message)
        await self._call.request.respond(status, body, headers)

    async def hand_back_whole(self) -> None:
        """Hand on an answer."""
        call, response, outcome = self._call, self._response, self._call.outcome
        body = await response.answer.read()
        outcome.status, outcome.size = response.answer.status, len(body)
        fields = parse_object(body)
        if fields is None or not (self._backends.has_answer(fields) or failure_of(fields.get("error"))):
            what = "no JSON object" if fields is None else "an object without an answer"
            raise Refused(502, "backend_garbage", f"{self._address} answered {what}: {self._shown(body)}")
        if call.is_stream and self._backends.has_answer(fields):  # in which clients would find no event
            raise Refused(502, "backend_garbage", f"{self._address} was asked for a stream, and answered in one piece")
        outcome.answer = self._backends.read(fields)
        if (given_up := _given_up(fields)) is not None:
            raise given_up
        if not self._backends.has_answer(fields):  # an error, with the status of an answer
            outcome.status = _error_status(fields["error"])
            if self._conversion is not None:
                message = self._replica.hide_keys(outcome.answer.failure or "")
                body = self._error(outcome.status, message, "backend_error")
        elif self._conversion is not None:
            self._conversion.take(fields)
            body, outcome.answer.id = dump(self._conversion.answer()), self._conversion.id
            self._keep_converted(self._conversion)
        else:
            self._keep_id(outcome.answer.id)
            if response.added:
                self._dialect.strip(fields, response.added)
                body = dump(fields)
        if outcome.answer.failure is not None:
            body = self._replica.hide_keys_in(body)
        await call.request.respond(outcome.status, body, _headers_of(response))

    def _error(self, status: int, message: str, kind: str) -> bytes:
        return dump(self._dialect.error(Refused(status, kind, message)))

    def _shown(self, body: bytes) -> str:
        return repr(self._replica.hide_keys_in(body)[:_SHOWN_BYTES].decode("utf-8", "replace"))

    def _keep_id(self, response_id: str | None) -> None:
        if self._wants_id and response_id is not None:
            self._wants_id = False
            self._replicas.keep_response(self._call.owner, response_id, self._replica)

    def _keep_converted(self, stream: ChatStream) -> None:
        call = self._call
        if self._is_kept and call.route.fields is not None:
            size = len(call.route.body) + call.outcome.size
            self._stored.keep(call.attempt_id, call.route.fields, stream.answer(), size)


class _StreamRelay(_Relay):
    """Hands a stream on, piece by piece, and puts its answer together.

    An event goes out as it came where nothing is to be taken out of it. No more is read from the backend than the agent
    takes, but for what the connections buffer.
    """

    def __init__(
        self, call: Call, response: Response, dialect: Dialect, replicas: Replicas, stored: StoredResponses
    ) -> None:
        super().__init__(call, response, dialect, replicas, stored)
        self._reader = EventReader()
        self._assembler = Assembler(self._backends, self._backends.choices(call.route.fields or {}))
        self._has_ended = False
        """Whether the stream has ended in the agent's API, where it is converted."""
        self._is_sending = False
        self._error_found: BackendBroke | Refused | None = None
        """What is wrong with the event after those that were read."""

    async def run(self) -> None:
        """Hand it on."""
        call = self._call
        call.outcome.status = self._response.answer.status
        try:
            await self._relay()
        finally:
            call.outcome.answer = answer = self._assembler.answer()
            # Many agents close a stream at the finish reason, before what the backend still says of the usage.
            is_complete = answer.failure is None and self._assembler.is_complete(answer)
            call.outcome.is_answered = is_complete and not self._is_sending
            if self._conversion is not None:  # by which the agent, and what instruments its client, knows it
                answer.id = self._conversion.id

    async def _relay(self) -> None:
        outcome = self._call.outcome
        async for piece in self._response.answer.pieces():
            outcome.size += len(piece)
            await self._send(self._read(self._events(piece)))
            if self._error_found is not None:
                raise self._error_found
        last = self._read(self._reader.finish())
        if self._error_found is not None:
            raise self._error_found
        if not self._assembler.is_ended and not self._assembler.is_complete(self._assembler.answer()):
            raise BackendBroke(f"{self._address} ended its stream before the answer was complete")
        await self._send(last + self._end_converted())
        if outcome.first_chunk_seconds is None:
            await self._call.request.start_stream(self._response.answer.status, _headers_of(self._response))
        await self._call.request.end_stream()

    async def _send(self, piece: bytes) -> None:
        if not piece:
            return
        request, outcome = self._call.request, self._call.outcome
        self._is_sending = True  # and stays so where the agent does not take it
        if outcome.first_chunk_seconds is not None:
            await request.send_piece(piece)
        else:
            await request.start_stream(self._response.answer.status, _headers_of(self._response))
            await request.send_piece(piece)
            await asyncio.sleep(0)  # the event loop writes to sockets when it gets its turn
            outcome.first_chunk_seconds = self._call.seconds()
        self._is_sending = False

    def _events(self, piece: bytes) -> list[ServerEvent]:
        try:
            return self._reader.feed(piece)
        except NoEventStream as exc:
            raise BackendBroke(f"{self._address} sent no event stream: {exc}") from exc

    def _read(self, events: list[ServerEvent]) -> bytes:
        """Read events up to one with which something is wrong, and return what goes to the agent."""
        left, added = [], self._response.added
        for event in events:
            fields = event.fields()
            had_ended = self._assembler.is_ended
            self._assembler.feed(event, fields)
            self._error_found = None if had_ended else self._error_in(event, fields)
            if self._error_found is not None:
                break
            if self._conversion is not None:
                left.append(self._converted(self._conversion, event, fields))
            elif fields is None or not added:
                failed = self._assembler.failure is not None
                left.append(self._replica.hide_keys_in(event.raw) if failed else event.raw)
            elif self._dialect.strip_event(fields, added):
                left.append(event.with_fields(fields))
        self._keep_id(self._assembler.id)
        return b"".join(left)

    def _error_in(self, event: ServerEvent, fields: Fields | None) -> BackendBroke | Refused | None:
        assembler, broken = self._assembler, None
        is_converted_end = assembler.is_ended and self._conversion is not None
        if assembler.failure is not None and not assembler.is_ended:  # in a form that clients may pass over
            return Refused(_error_status(assembler.error), "backend_error", self._replica.hide_keys(assembler.failure))
        if fields is not None and (given_up := _given_up(fields)) is not None:
            return given_up
        if fields is None and event.data and event.data != DONE:
            broken = f"sent an event that is not a JSON object: {self._shown(event.data)}"
        elif fields is not None and self._backends.is_garbage(fields):
            broken = f"sent an event without choices: {self._shown(event.data)}"
        elif assembler.is_ended and assembler.is_empty:
            broken = "ended its stream without an answer"
        elif is_converted_end and any(choice.finish_reason is None for choice in assembler.answer().choices):
            broken = "ended its stream without a finish reason"
        return None if broken is None else BackendBroke(f"{self._address} {broken}")

    def _converted(self, conversion: ChatStream, event: ServerEvent, fields: Fields | None) -> bytes:
        """Return an event of a chat in the agent's API."""
        if fields is not None:
            return b"" if self._has_ended else _bytes_of(conversion.feed(fields))
        if event.data:  # after the end, there may be anything
            return self._end_converted() if event.data == DONE else b""
        return event.raw

    def _end_converted(self) -> bytes:
        if self._conversion is None or self._has_ended:
            return b""
        self._has_ended = True
        last = _bytes_of(self._conversion.finish())
        self._keep_converted(self._conversion)
        return last


def _bytes_of(events: Sequence[Fields]) -> bytes:
    return b"".join(ServerEvent(b"", event.get("type", ""), b"").with_fields(event) for event in events)


def _given_up(fields: Fields) -> Refused | None:
    """Return the error of an answer that vLLM or SGLang did not complete, because of new weights."""
    if all(choice.get("finish_reason") != "abort" for choice in objects(fields.get("choices"))):
        return None
    message = "the engine gave the call up before its answer was complete; try again in a moment"
    return Refused(503, "call_aborted", message, retry_after=1.0)


def _error_status(error: object) -> int:
    """Return the HTTP status that an error names: by its number, as vLLM and OpenRouter do, or by Anthropic's type."""
    fields = error if isinstance(error, dict) else {}
    code = fields.get("code")
    if isinstance(code, int) and 400 <= code < 600:
        return code
    return next((status for status, kind in ANTHROPIC_TYPES.items() if kind == fields.get("type")), 502)


def _words_of(fields: dict[str, Any] | None, body: bytes) -> str:
    """Return what an error says that has no `error`: FastAPI's `detail`, the `message` of older engines, a text."""
    for name in ("detail", "message"):
        detail = (fields or {}).get(name)
        if detail:
            return detail if isinstance(detail, str) else text(detail)
    return body[:_LONGEST_TEXT].decode("utf-8", "replace").strip()


def _error_code(error: Any) -> str | None:
    """Return a backend's name of an error; None for what may be more than a name."""
    code = error.get("code") or error.get("type") if isinstance(error, dict) else None
    return str(code) if isinstance(code, str | int) and _NAME.fullmatch(str(code)) else None


def _headers_of(response: Response) -> list[tuple[bytes, bytes]]:
    # As aiohttp reads them: so the bytes are those that came.
    return [
        (name.lower().encode("latin-1"), value.encode("utf-8", "surrogateescape"))
        for name, value in response.answer.headers
    ]
