"""Hands a backend's answer to the agent, and has it read: in one piece, as a stream, or as it is."""

import asyncio
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from lightning_proxy.answer import failure_of, objects, text_of
from lightning_proxy.backend import BackendBroke
from lightning_proxy.call import Call
from lightning_proxy.conversion import StoredItems
from lightning_proxy.dialects import Assembler, Dialect
from lightning_proxy.dialects.base import Fields
from lightning_proxy.jsons import dump, parse_object, text
from lightning_proxy.replicas import Replica, Replicas
from lightning_proxy.request import TOO_LONG, Refused
from lightning_proxy.send import Response
from lightning_proxy.sse import DONE, EventReader, NoEventStream, ServerEvent

_HIDDEN = b"***"
_VARIABLE = "os.environ/"
_SHORTEST_KEY = 8
"""What is shorter stands for none, such as `EMPTY`, and may be a part of any text."""
_LONGEST_TEXT = 4096
"""So many bytes of an error that is not JSON are passed on: it may be a page."""
_SHOWN_BYTES = 200
_OVERFLOW = re.compile(r"maximum context length is (\d+) tokens.*?(\d+)(?: input tokens| in the messages)", re.DOTALL)
"""How vLLM, and `TokensBackend`, say that a conversation is too long."""
_NAME = re.compile(r"[\w.-]{1,64}")


class _Keeper:
    """Keeps what an agent may name later, before it can: where its response is stored, and items of a converted one."""

    def __init__(self, call: Call, response: Response, replicas: Replicas, items: StoredItems) -> None:
        is_stored = (
            call.dialect is not None and call.dialect.is_stored and (call.route.fields or {}).get("store") is not False
        )
        self.wants_id = is_stored and response.conversion is None
        """Whether the backend stores the response, and it is not known yet under which id."""
        self._wants_items = is_stored and response.conversion is not None
        self._call, self._replica = call, response.replica
        self._replicas, self._items = replicas, items

    async def response(self, response_id: str) -> None:
        self.wants_id = False
        self._replicas.keep_response(self._call.owner, response_id, self._replica)

    def item(self, item: Fields) -> None:
        if self._wants_items:
            self._items.keep(self._call.attempt_id, item)

    def converted(self, response: Fields) -> None:
        if self._wants_items:
            self._items.keep_response(self._call.attempt_id, response, self._call.route.fields or {})


async def hand_back(call: Call, response: Response, replicas: Replicas, items: StoredItems) -> None:
    """Hand an answer to the agent, and read it into the call.

    Args:
        call: The call.
        response: The answer.
        replicas: Is told where a response is stored.
        items: Keeps those of a converted response.

    Raises:
        Refused: When it cannot be understood.
        BackendBroke: When it breaks off.
        BackendTimeout: When it does not go on.
        ClientGone: When the agent does not take it.
    """
    answer, dialect = response.answer, call.dialect
    keeper = _Keeper(call, response, replicas, items)
    if dialect is None:
        await _pass_through(call, response)
    elif answer.status >= 400:
        await _hand_back_error(call, response, dialect)
    elif answer.header("content-type").startswith("text/event-stream"):
        await _StreamRelay(call, response, dialect, keeper).run()
    else:
        await _hand_back_whole(call, response, dialect, keeper)
    if call.outcome.answer.failure is not None:
        call.outcome.fail("backend_error", _failure(call, response))


async def _pass_through(call: Call, response: Response) -> None:
    answer, request = response.answer, call.request
    if answer.status >= 400:
        body = without_keys_of(response.replica, await answer.read())
        await request.respond(answer.status, body, _headers_of(response))
        return
    await request.start_stream(answer.status, _headers_of(response))
    async for piece in answer.pieces():
        await request.send_piece(piece)
    await request.end_stream()


async def _hand_back_error(call: Call, response: Response, dialect: Dialect) -> None:
    status, headers = response.answer.status, _headers_of(response)
    body = await response.answer.read()
    outcome = call.outcome
    outcome.status, outcome.size = status, len(body)
    body = without_keys_of(response.replica, body)
    fields = parse_object(body)
    if fields is not None and "error" in fields:  # in the form that agents understand
        error = fields["error"]
        message = str(error.get("message") if isinstance(error, dict) else error)
        outcome.error_code = _error_code(error)
        if response.conversion is not None:
            if found := _OVERFLOW.search(message):
                most, tokens = map(int, found.groups())
                message = response.conversion.overflow(message, tokens, most, call.route.fields or {})
                outcome.error_code = TOO_LONG
            body = dump(dialect.error(Refused(status, outcome.error_code or "backend_error", message)))
    else:
        message = _words_of(fields, body) or f"{response.replica.backend.address} answered {status} without a word"
        said = {} if fields is None or response.conversion is not None else fields
        body = dump({**said, **dialect.error(Refused(status, "backend_error", message))})
        headers = [header for header in headers if header[0] != b"content-type"]
        headers.append((b"content-type", b"application/json"))
    outcome.fail(str(status), message)
    await call.request.respond(status, body, headers)


async def _hand_back_whole(call: Call, response: Response, dialect: Dialect, keeper: _Keeper) -> None:
    body = await response.answer.read()
    outcome = call.outcome
    outcome.status, outcome.size = response.answer.status, len(body)
    fields = parse_object(body)
    backends = response.dialect or dialect
    if fields is None or not (backends.has_answer(fields) or failure_of(fields.get("error"))):
        what = "no JSON object" if fields is None else "an object without an answer"
        message = f"{response.replica.backend.address} answered {what}: {_shown(response.replica, body)}"
        raise Refused(502, "backend_garbage", message)
    outcome.answer = backends.read(fields)
    if not backends.has_answer(fields):  # an error, with the status of an answer
        outcome.status = _error_status(fields["error"])
        body = without_keys_of(response.replica, body)
        if response.conversion is not None:
            body = dump(dialect.error(Refused(outcome.status, "backend_error", _failure(call, response))))
        await call.request.respond(outcome.status, body, _headers_of(response))
        return
    if keeper.wants_id and outcome.answer.id is not None:
        await keeper.response(outcome.answer.id)
    if response.conversion is not None:
        converted = response.conversion.answer(fields, call.route.fields or {})
        outcome.answer.id = text_of(converted.get("id"))
        for item in objects(converted.get("output")):
            keeper.item(item)
        keeper.converted(converted)
        body = dump(converted)
    elif response.added:
        dialect.strip(fields, response.added)
        body = dump(fields)
    await call.request.respond(response.answer.status, body, _headers_of(response))


def _failure(call: Call, response: Response) -> str:
    """Return what an answer itself says went wrong."""
    return without_keys_of(response.replica, (call.outcome.answer.failure or "").encode("utf-8", "replace")).decode()


class _StreamRelay:
    """Hands a stream on, piece by piece, and puts its answer together.

    A piece goes out as it came where nothing is to be taken out of it. No more is read from the backend than the agent
    takes, but for what the connections buffer.
    """

    def __init__(self, call: Call, response: Response, dialect: Dialect, keeper: _Keeper) -> None:
        self._call = call
        self._response = response
        self._dialect = response.dialect or dialect
        self._keeper = keeper
        self._reader = EventReader()
        self._assembler = Assembler(self._dialect, self._dialect.choices(call.route.fields or {}))
        self._conversion = None if response.conversion is None else response.conversion.stream(call.route.fields or {})
        """Until the stream has ended in the agent's API."""
        self._id = None if self._conversion is None else self._conversion.id
        """By which the agent, and what instruments its client, knows a converted answer."""
        self._is_sending = False
        self._error: BackendBroke | Refused | None = None
        """What is wrong with the event after those that were read."""

    async def run(self) -> None:
        call = self._call
        call.outcome.status = self._response.answer.status
        try:
            await self._relay()
        finally:
            call.outcome.answer = answer = self._assembler.answer()
            # Many agents close a stream at the finish reason, before what the backend still says of the usage.
            is_complete = answer.failure is None and self._assembler.is_complete(answer)
            call.outcome.is_answered = is_complete and not self._is_sending
            if self._id is not None:
                answer.id = self._id

    async def _relay(self) -> None:
        request = self._call.request
        is_rewritten = bool(self._response.added) or self._response.conversion is not None
        async for piece in self._response.answer.pieces():
            self._call.outcome.size += len(piece)
            has_rest = not self._reader.is_between_events
            events = self._events(piece)
            # The first one goes out before the others are read, however many came with it.
            is_first = is_rewritten and self._call.outcome.first_chunk_seconds is None
            for part in [events[:1], events[1:]] if is_first else [events]:
                left = self._read(part)
                if self._keeper.wants_id and (response_id := self._assembler.id) is not None:
                    await self._keeper.response(response_id)
                is_as_it_came = not (is_rewritten or has_rest or self._error) and self._reader.is_between_events
                await self._send(piece if is_as_it_came else left)
                if self._error is not None:
                    raise self._error
        last = self._read(self._reader.finish())
        answer = self._assembler.answer()
        if self._error is not None:
            raise self._error
        if not (self._assembler.is_ended or answer.failure is not None or self._assembler.is_complete(answer)):
            raise BackendBroke(f"{self._address} ended its stream before the answer was complete")
        await self._send(last + self._end_converted())
        if self._call.outcome.first_chunk_seconds is None:
            await request.start_stream(self._response.answer.status, _headers_of(self._response))
        await request.end_stream()

    async def _send(self, piece: bytes) -> None:
        if not piece:
            return
        call = self._call
        self._is_sending = True  # and stays so where the agent does not take it
        if call.outcome.first_chunk_seconds is not None:
            await call.request.send_piece(piece)
        else:
            await call.request.start_stream(self._response.answer.status, _headers_of(self._response))
            await call.request.send_piece(piece)
            await asyncio.sleep(0)  # the event loop writes to sockets when it gets its turn
            call.outcome.first_chunk_seconds = call.seconds()
        self._is_sending = False

    def _events(self, piece: bytes) -> list[ServerEvent]:
        try:
            return self._reader.feed(piece)
        except NoEventStream as exc:
            raise BackendBroke(f"{self._address} sent no event stream: {exc}") from exc

    def _read(self, events: list[ServerEvent]) -> bytes:
        """Read events up to one with which something is wrong, and return what is left of them for the agent."""
        left, added = [], self._response.added
        for event in events:
            fields = event.fields()
            had_ended = self._assembler.is_ended
            self._assembler.feed(event, fields)
            self._error = None if had_ended else self._error_in(event, fields)
            if self._error is not None:
                break
            if self._response.conversion is not None:
                left.append(self._converted(event, fields))
            elif fields is None or not added:
                left.append(event.raw)
            elif self._dialect.strip_event(fields, added):
                left.append(event.with_fields(fields))
        return b"".join(left)

    def _error_in(self, event: ServerEvent, fields: dict[str, Any] | None) -> BackendBroke | Refused | None:
        replica = self._response.replica
        if fields is None and event.data and event.data != DONE:
            shown = _shown(replica, event.data)
            return BackendBroke(f"{self._address} sent an event that is not a JSON object: {shown}")
        if fields is not None and self._dialect.is_garbage(fields):
            return BackendBroke(f"{self._address} sent an event without choices: {_shown(replica, event.data)}")
        if self._assembler.is_ended and self._assembler.is_empty:
            return BackendBroke(f"{self._address} ended its stream without an answer")
        is_end = self._conversion is not None and self._assembler.is_ended
        if is_end and any(choice.finish_reason is None for choice in self._assembler.answer().choices):
            return BackendBroke(f"{self._address} ended its stream without a finish reason")
        said = None if fields is None else self._dialect.unraised_error(event, fields)
        if self._response.conversion is not None and fields is not None:
            said = said or failure_of(fields.get("error"))
        if said is None:
            return None
        return Refused(502, "backend_error", without_keys_of(replica, said.encode("utf-8", "replace")).decode())

    def _converted(self, event: ServerEvent, fields: Fields | None) -> bytes:
        """Return an event of a chat in the agent's API."""
        if fields is None:
            if event.data:  # after the end, there may be anything
                return self._end_converted() if event.data == DONE else b""
            return event.raw
        return b"" if self._conversion is None else self._bytes_of(self._conversion.feed(fields))

    def _end_converted(self) -> bytes:
        conversion, self._conversion = self._conversion, None
        return b"" if conversion is None else self._bytes_of(conversion.finish())

    def _bytes_of(self, events: Sequence[Fields]) -> bytes:
        for event in events:
            if event["type"] == "response.output_item.done":
                self._keeper.item(event["item"])
            elif event["type"] in ("response.completed", "response.incomplete"):
                self._keeper.converted(event["response"])
        return b"".join(ServerEvent(b"", str(event["type"]), b"").with_fields(event) for event in events)

    @property
    def _address(self) -> str:
        return self._response.replica.backend.address


def without_keys_of(replica: Replica, text: bytes) -> bytes:
    """Return what a backend said without the keys that its entry of the model list has for it."""
    for key in _keys(replica.spec):
        if len(key) >= _SHORTEST_KEY:
            text = text.replace(key.encode(), _HIDDEN)
    return text


def _shown(replica: Replica, body: bytes) -> str:
    return repr(without_keys_of(replica, body)[:_SHOWN_BYTES].decode("utf-8", "replace"))


def _error_status(error: object) -> int:
    """Return the HTTP status that an error names, as OpenRouter's do."""
    code = error.get("code") if isinstance(error, dict) else None
    return code if isinstance(code, int) and 400 <= code < 600 else 502


def _keys(entry: object) -> Iterator[str]:
    if not isinstance(entry, Mapping):
        return
    backend = entry.get("backend")
    options: dict[str, Any] = {
        **(backend if isinstance(backend, Mapping) else {}),
        **entry.get("litellm_params", {}),
    }
    key, headers = options.get("api_key"), options.get("headers")
    if key is None and options.get("api_base") is None:
        key = f"{_VARIABLE}OPENAI_API_KEY"
    for given in (key, *(headers.values() if isinstance(headers, Mapping) else ())):
        if isinstance(given, str):
            yield os.environ.get(given.removeprefix(_VARIABLE), "") if given.startswith(_VARIABLE) else given


def _words_of(fields: dict[str, Any] | None, body: bytes) -> str:
    """Return what an error says that has no `error`: FastAPI's `detail`, the `message` of older engines, a text."""
    for name in ("detail", "message"):
        said = (fields or {}).get(name)
        if said:
            return said if isinstance(said, str) else text(said)
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
