"""An agent that is a service."""

import os
from collections.abc import Mapping
from typing import Any, Literal
from urllib.parse import quote, urlsplit

from lightning_http.post import post

from lightning_agents.briefing import Briefing, check_reward, reward_of_value
from lightning_core.agent.base import LitAgent
from lightning_core.errors import InvalidAgent
from lightning_core.semconv import LightningResourceAttributes
from lightning_core.types import NamedResources, Rollout


def request_of(briefing: Briefing) -> dict[str, Any]:
    """Return the body of a request. What there is not has no field."""
    body: dict[str, Any] = {
        "task": briefing.task,
        "rollout_id": briefing.rollout_id,
        "attempt_id": briefing.attempt_id,
        "mode": briefing.mode,
        "headers": briefing.headers(),
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

    Raises:
        InvalidAgent: When an option has a value that it does not take.
    """

    runs_elsewhere = True

    def __init__(
        self,
        url: str,
        *,
        reward: Literal["answer", "report", "grader"] = "answer",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.url = _checked_url(url)
        check_reward(reward, _REWARDS)
        self.reward = reward
        self.headers = dict(headers or {})
        self._sent_headers()

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
        """
        briefing = Briefing.of(task, resources, rollout)
        answer = await post(self.url, request_of(briefing), self._headers_for(briefing))
        if self.reward == "grader":
            return answer
        if self.reward == "report":
            return None
        if isinstance(answer, Mapping) and "reward" in answer:
            answer = answer["reward"]
        return reward_of_value(answer, f"the answer of the service {self.url}")

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
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InvalidAgent(f"url is {url!r}; it is the URL of a service, as in 'http://127.0.0.1:8000/rollout'")
    try:
        parts.port  # noqa: B018  # reading it checks it
    except ValueError as exc:
        raise InvalidAgent(f"url is {url!r}: {exc}") from exc
    return url


def _from_environment(name: str, value: str) -> str:
    prefix = "os.environ/"
    if not value.startswith(prefix):
        return value
    found = os.environ.get(value.removeprefix(prefix))
    if found is None:
        raise InvalidAgent(f"the header {name} is to come from {value.removeprefix(prefix)}, which is not set; set it")
    return found
