"""An agent that is a service."""

import inspect
import os
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote, urlsplit

import aiohttp
from lightning_http.post import OUT_OF_REACH, check_answer, out_of_reach, post

from lightning_agents.briefing import Briefing, check_reward, reward_of_value
from lightning_core.agent.base import LitAgent
from lightning_core.agent.functions import is_coroutine_function, is_given_by_name, main_or_first
from lightning_core.errors import Fault, InvalidAgent, InvalidTask, ServiceFailed
from lightning_core.registry import load_object
from lightning_core.semconv import LightningResourceAttributes
from lightning_core.types import LLM, NamedResources, ProxyLLM, Rollout

KEY_OPTION = "api_key"


def checked_client(client: str | type) -> Any:
    """Return the class.

    Raises:
        InvalidAgent: When it is not a class, or has no async `chat`.
        RegistryError: When it cannot be loaded.
    """
    found = load_object(client) if isinstance(client, str) else client
    if not isinstance(found, type) or not is_coroutine_function(getattr(found, "chat", None) or checked_client):
        raise InvalidAgent(
            f"client is {client!r}; it is a class with a method "
            "'async def chat(self, trace_id, sampling_params, **sample)'"
        )
    return found


def takes(client: Any, option: str) -> bool:
    """Tell whether a class names an option among its parameters; `**options` may pass it on."""
    parameter = inspect.signature(client).parameters.get(option)
    return parameter is not None and is_given_by_name(parameter)


@asynccontextmanager
async def opened(client: Any, server_address: str, **options: Any) -> AsyncIterator[Any]:
    """Make a client for the block, and let go of it after: `async with`, or else `aclose` or `close`, where it has one.

    Args:
        client: The class.
        server_address: Where the service is.
        options: Further options, for parameters that it has.
    """
    made = client(server_address=server_address, **{name: options[name] for name in options if takes(client, name)})
    if hasattr(made, "__aenter__"):
        async with made:
            yield made
        return
    try:
        yield made
    finally:
        close = getattr(made, "aclose", None) or getattr(made, "close", None)
        if close is not None:
            closing = close()
            if inspect.isawaitable(closing):
                await closing


_ANSWER_SECONDS = 10.0


async def wants_key(llm: LLM) -> bool:
    """Ask the server of a model whether it refuses callers without a key.

    Raises:
        Fault: When it is out of reach.
    """
    url = f"{llm.endpoint.rstrip('/')}/models"
    try:
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_ANSWER_SECONDS)) as session,
            session.get(url) as response,
        ):
            return response.status == 401
    except (aiohttp.ClientError, TimeoutError) as exc:
        raise Fault(f"the model at {url} is out of reach: {exc or type(exc).__name__}") from exc


NOTIFY_VARIABLE = "LLM_SERVER_NOTIFY_FILE"


def write_notify_file(path: Path, llm: LLM) -> None:
    """Write `host:port` of a model's server to the first line of a file; the service asks `http://host:port/v1`.

    A reader at the same time sees the old line or the new.

    Args:
        path: Where it is: a folder that the service sees, too.
        llm: The resource as the rollout has it, not that of one attempt: the file is the same for all of them.

    Raises:
        InvalidAgent: When the endpoint is not like `http://host:port/v1`.
        Fault: When the file cannot be written.
    """
    parts = urlsplit(llm.endpoint)
    if parts.scheme != "http" or not parts.netloc or parts.path.rstrip("/") != "/v1" or parts.username:
        raise InvalidAgent(
            f"the notify file {path} tells a service host:port alone, of http://host:port/v1; "
            f"the endpoint {llm.endpoint!r} cannot be told so"
        )
    try:
        if path.is_file() and path.read_text(encoding="utf-8").splitlines()[:1] == [parts.netloc]:
            return
        new = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
        new.write_text(parts.netloc + "\n", encoding="utf-8")
        os.replace(new, path)
    except OSError as exc:
        raise Fault(f"the notify file {path} cannot be written: {exc}") from exc


def request_of(briefing: Briefing, attribution_header: str | None) -> dict[str, Any]:
    """Return the body of a request. What there is not has no field.

    Args:
        briefing: What there is to know.
        attribution_header: A header that the proxy knows attempts by; None for its own.
    """
    headers = briefing.headers()
    if attribution_header is not None:
        headers[attribution_header] = briefing.trace_id
    body: dict[str, Any] = {
        "task": briefing.task,
        "rollout_id": briefing.rollout_id,
        "attempt_id": briefing.attempt_id,
        "mode": briefing.mode,
        "headers": headers,
    }
    if briefing.llm is not None:
        body |= {
            "model": briefing.llm.model,
            "base_url": briefing.llm.endpoint,
            "api_key": briefing.key,
            "sampling_parameters": briefing.llm.sampling_parameters,
        }
    if briefing.prompt_template is not None:
        body["prompt_template"] = briefing.prompt_template.template
    prompt = briefing.prompt()
    if prompt is not None:
        body["prompt"] = prompt
    if briefing.report_url is not None:
        body |= {"report_url": briefing.report_url, "report_key": briefing.key}
    return body


_REWARDS = ("answer", "report", "grader")


class HttpAgent(LitAgent[Any]):
    """Lets a service do each rollout: sends it a POST, and waits for its answer.

    The body is JSON: `task`, `mode`, `rollout_id`, `attempt_id`, and of the model `model`, `base_url`, `api_key` and
    `sampling_parameters`; see the guide. `headers` are for the service to send with its model calls, where it does not
    use `base_url`; the request itself carries them, too, and as W3C's `baggage`, which instrumented services pass on.

    A service that cannot be reached, or goes away before it has answered, is a fault. An answer of 4xx or 5xx, or one
    with `error` in it, fails the attempt; one with `fault` in it is a fault. There is no limit to an answer's time but
    the rollout's `timeout_seconds`; the connection is closed then.

    Args:
        url: Where the service takes tasks: `http://` or `https://`.
        reward: Where the reward is: `answer`, the answer is a number, an object of numbers, or has one of these under
            `reward`; `report`, it is reported to `report_url`, if there is any; `grader`, a grader scores the answer.
        headers: What is sent with each request; `os.environ/NAME` for the value of a variable.
        attribution_header: A header by which the proxy knows attempts, where it has been given one, such as
            `trace_id`; its value is `ROLLOUT_ID/ATTEMPT_ID`.
        notify_file: A file that gets `host:port` of the model's server before the first request; None for the
            variable `LLM_SERVER_NOTIFY_FILE`, if it is set.
        client: A class, or its path: `package.module:Class`. One is made for each rollout, with `server_address=url`,
            and with `base_url` and `api_key` of the model if its constructor names them; it is let go of after: by
            `async with`, `aclose` or `close`, whichever it has. Its async `chat(trace_id, sampling_params, **sample)`
            is called in place of the POST with the fields of the task, and returns what a service answers.

    Raises:
        InvalidAgent: When an option has a value that it does not take.
        RegistryError: When the client cannot be loaded.
    """

    runs_elsewhere = True

    def __init__(
        self,
        url: str,
        *,
        reward: Literal["answer", "report", "grader"] = "answer",
        headers: Mapping[str, str] | None = None,
        attribution_header: str | None = None,
        notify_file: str | os.PathLike[str] | None = None,
        client: str | type | None = None,
    ) -> None:
        self.url = _checked_url(url)
        check_reward(reward, _REWARDS)
        self.reward = reward
        self.headers = dict(headers or {})
        self._sent_headers()
        self.attribution_header = attribution_header
        path = os.environ.get(NOTIFY_VARIABLE) if notify_file is None else os.fspath(notify_file)
        self._notify_file = Path(os.path.abspath(path)) if path else None
        self.client = client
        if client is not None:
            checked_client(client)
        self._open_endpoints: set[str] = set()
        """Of models that were asked, and want no key."""

    @property
    def name(self) -> str:
        """What it is called in messages."""
        return self.url

    async def rollout_async(self, task: Any, resources: NamedResources, rollout: Rollout) -> Any:
        """Let the service do a task, and return its reward, or for a grader its answer.

        Raises:
            Fault: When the service is out of reach, or says so of what it needs.
            ServiceFailed: When it answers with an error.
            InvalidResult: When its answer is not a reward, and should be one.
            InvalidTask: When the task cannot be given to it.
            InvalidAgent: When it cannot be told the key that its model wants.
        """
        briefing = Briefing.of(task, resources, rollout)
        model = main_or_first(resources, LLM)
        if isinstance(model, ProxyLLM):
            model = model.without_attempt()
        await self._require_told(model)
        if self._notify_file is not None and model is not None:
            write_notify_file(self._notify_file, model)
        if self.client is None:
            answer = await post(self.url, request_of(briefing, self.attribution_header), self._headers_for(briefing))
        else:
            answer = await self._chat(checked_client(self.client), briefing)
        if self.reward == "grader":
            return answer
        if self.reward == "report":
            return None
        if isinstance(answer, Mapping) and "reward" in answer:
            answer = answer["reward"]
        return reward_of_value(answer, f"the answer of the service {self.url}")

    async def _chat(self, client: Any, briefing: Briefing) -> Any:
        if not isinstance(briefing.task, Mapping):
            raise InvalidTask(
                f"the client's chat takes the task's fields by name, and this task is a {type(briefing.task).__name__}"
            )
        taken = [name for name in ("trace_id", "sampling_params") if name in briefing.task]
        if taken:
            raise InvalidTask(
                f"the task has a field {taken[0]!r}, and the client's chat takes the task's fields beside a "
                f"{taken[0]} of its own; call the field something else"
            )
        parameters = {} if briefing.llm is None else dict(briefing.llm.sampling_parameters)
        model = {} if briefing.llm is None else {"base_url": briefing.llm.endpoint, KEY_OPTION: briefing.key}
        try:
            async with opened(client, self.url, **model) as made:
                answer = await made.chat(trace_id=briefing.trace_id, sampling_params=parameters, **briefing.task)
        except OUT_OF_REACH as exc:
            raise out_of_reach(self.url, exc) from exc
        except aiohttp.ClientResponseError as exc:
            raise ServiceFailed(
                f"the service {self.url} answered {exc.status}: {exc.message}", status=exc.status
            ) from exc
        check_answer(self.url, answer, str(answer))
        return answer

    async def _require_told(self, model: LLM | None) -> None:
        """Refuse a proxy that wants a key of a service that is not told it: all calls would be in vain.

        Raises:
            InvalidAgent: Says what to do.
            Fault: When the proxy is out of reach.
        """
        if not isinstance(model, ProxyLLM) or not model.api_key or model.endpoint in self._open_endpoints:
            return
        if self.client is not None:
            client = checked_client(self.client)
            if takes(client, KEY_OPTION):
                return
            what = (
                f"the client {client.__qualname__} is not told; let its constructor take 'base_url' and '{KEY_OPTION}'"
            )
        elif self._notify_file is not None:
            what = (
                f"the notify file {self._notify_file} has no room for; leave it out, and let the service take "
                f"'base_url' and '{KEY_OPTION}' of its requests"
            )
        else:
            return
        if await wants_key(model):
            raise InvalidAgent(
                f"the proxy at {model.endpoint} wants the attempt's key, which {what}, or start the proxy without a "
                "key: llm_proxy={'key': '', ...}"
            )
        self._open_endpoints.add(model.endpoint)

    def _headers_for(self, briefing: Briefing) -> dict[str, str]:
        ids = {
            LightningResourceAttributes.ROLLOUT_ID.value: briefing.rollout_id,
            LightningResourceAttributes.ATTEMPT_ID.value: briefing.attempt_id,
        }
        baggage = ",".join(f"{name}={quote(value)}" for name, value in ids.items())
        return {**briefing.headers(), "baggage": baggage, **self._sent_headers()}

    def _sent_headers(self) -> dict[str, str]:
        return {name: _from_environment(name, value) for name, value in self.headers.items()}


def _checked_url(url: str) -> str:
    parts = urlsplit(url) if isinstance(url, str) else None
    if parts is None or parts.scheme not in ("http", "https") or not parts.hostname:
        raise InvalidAgent(f"url is {url!r}; it is the URL of a service, as in 'http://127.0.0.1:8000/rollout'")
    try:
        parts.port  # noqa: B018  # reading it checks it
    except ValueError as exc:
        raise InvalidAgent(f"url is {url!r}: {exc}") from exc
    return url


def _from_environment(name: str, value: str) -> str:
    prefix = "os.environ/"
    if not isinstance(value, str):
        raise InvalidAgent(f"headers has {name!r}: {value!r}; it is a text")
    if not value.startswith(prefix):
        return value
    found = os.environ.get(value.removeprefix(prefix))
    if found is None:
        raise InvalidAgent(f"the header {name} is to come from {value.removeprefix(prefix)}, which is not set; set it")
    return found
