"""Which errors of a model's client say that it may answer later, and how long to wait for that."""

import time
from email.utils import formatdate
from typing import Any

import aiohttp
import httpx
import openai
import pytest

from lightning_core.errors import Fault, StoreUnavailable
from lightning_core.runner.clients import PATIENCE_SECONDS, NoAnswer, find_no_answer
from lightning_core.runner.outcome import is_fault

anthropic = pytest.importorskip("anthropic")  # these are not everywhere where the lowest versions are tried
botocore_exceptions = pytest.importorskip("botocore.exceptions")
requests = pytest.importorskip("requests")

REQUEST = httpx.Request("POST", "http://127.0.0.1/v1/chat/completions")


def answer(status: int, **headers: str) -> httpx.Response:
    return httpx.Response(
        status, headers={name.replace("_", "-"): each for name, each in headers.items()}, request=REQUEST
    )


def of_requests(status: int, **headers: str) -> Any:
    response = requests.Response()
    response.status_code = status
    response.headers.update(headers)
    return response


def foreign(module: str, **attributes: Any) -> Exception:
    """Return an error as a client has it that is not installed here."""
    kind = type("ClientError", (Exception,), {"__module__": module})
    error = kind("no answer")
    vars(error).update(attributes)
    return error


def raised_from(cause: Exception) -> Exception:
    try:
        raise RuntimeError("the framework's own") from cause
    except RuntimeError as exc:
        return exc


LIMIT = openai.RateLimitError("429", response=answer(429, retry_after="7"), body=None)
BEDROCK: Any = {"Error": {}, "ResponseMetadata": {"HTTPStatusCode": 503, "HTTPHeaders": {"retry-after": "3"}}}


@pytest.mark.parametrize(
    ("error", "found"),
    [
        (LIMIT, NoAnswer(7.0)),
        (openai.InternalServerError("500", response=answer(500), body=None), NoAnswer()),
        (openai.APITimeoutError(REQUEST), NoAnswer()),
        (openai.APIConnectionError(request=REQUEST), NoAnswer(is_out_of_reach=True)),
        (openai.RateLimitError("insufficient_quota", response=answer(429), body=None), NoAnswer(is_final=True)),
        (
            openai.RateLimitError("429", response=answer(429), body={"code": "insufficient_quota"}),
            NoAnswer(is_final=True),
        ),
        (openai.RateLimitError("", response=answer(429, x_should_retry="false"), body=None), NoAnswer(is_final=True)),
        (anthropic.APIStatusError("529", response=answer(529, retry_after_ms="250"), body=None), NoAnswer(0.25)),
        (httpx.HTTPStatusError("504", request=REQUEST, response=answer(504)), NoAnswer()),
        (httpx.ReadTimeout("slow"), NoAnswer()),
        (httpx.ConnectError("away"), NoAnswer(is_out_of_reach=True)),
        (requests.HTTPError("502", response=of_requests(502, **{"Retry-After": "5"})), NoAnswer(5.0)),
        (requests.ConnectTimeout("slow"), NoAnswer()),
        (requests.ConnectionError("away"), NoAnswer(is_out_of_reach=True)),
        (aiohttp.ClientResponseError(None, (), status=429, headers={"retry-after": "2"}), NoAnswer(2.0)),  # type: ignore[arg-type]
        (aiohttp.ServerTimeoutError("slow"), NoAnswer()),
        (aiohttp.ServerDisconnectedError(), NoAnswer(is_out_of_reach=True)),
        (botocore_exceptions.ClientError(BEDROCK, "Converse"), NoAnswer(3.0)),
        (botocore_exceptions.ReadTimeoutError(endpoint_url="x"), NoAnswer()),
        (foreign("google.genai.errors", code=429, status="RESOURCE_EXHAUSTED", response=answer(429)), NoAnswer()),
        (foreign("mistralai.client.errors.sdkerror", status_code=503, headers={"retry-after": "4"}), NoAnswer(4.0)),
        (foreign("ollama._types", status_code=500), NoAnswer()),
        (raised_from(raised_from(LIMIT)), NoAnswer(7.0)),
        (ExceptionGroup("all", [LIMIT, LIMIT]), NoAnswer(7.0)),
        (Fault("the search is busy", retry_after=9.0), NoAnswer(9.0)),
    ],
)
def test_a_model_that_may_answer_later_is_a_fault_whatever_client_says_so(error: Exception, found: NoAnswer) -> None:
    assert find_no_answer(error) == found
    assert is_fault(error)


@pytest.mark.parametrize(
    "error",
    [
        openai.BadRequestError("400", response=answer(400), body=None),
        openai.AuthenticationError("401", response=answer(401), body=None),
        httpx.HTTPStatusError("404", request=REQUEST, response=answer(404)),
        foreign("my_agent", status_code=429),
        type("APIConnectionError", (Exception,), {})(),
        ConnectionError("from anywhere"),
        TimeoutError("from anywhere"),
        ExceptionGroup("some", [LIMIT, ValueError("wrong")]),
    ],
)
def test_other_errors_are_the_agents_failures(error: Exception) -> None:
    assert find_no_answer(error) is None
    assert not is_fault(error)


def test_a_group_of_faults_is_a_fault() -> None:
    assert is_fault(ExceptionGroup("all", [Fault("a"), Fault("b")]))


def test_a_date_to_come_again_is_a_wait() -> None:
    found = find_no_answer(
        httpx.HTTPStatusError(
            "", request=REQUEST, response=answer(503, retry_after=formatdate(time.time() + 600, usegmt=True))
        )
    )
    assert found is not None
    assert found.asked_seconds is not None
    assert 0 < found.asked_seconds <= 600


def test_pauses_grow_and_last_as_long_as_is_asked_for_and_no_longer_than_patience() -> None:
    growing = [NoAnswer().pause_seconds(attempt) for attempt in (1, 2, 3)]
    assert growing == sorted(growing)
    assert sum(growing) > PATIENCE_SECONDS
    assert NoAnswer().pause_seconds(4) == 0.0  # the rollout is lost
    assert NoAnswer(asked_seconds=30.0).pause_seconds(1) >= 30.0
    assert NoAnswer(asked_seconds=0.1).pause_seconds(3) >= growing[1]
    assert PATIENCE_SECONDS <= NoAnswer(asked_seconds=86400.0).pause_seconds(1) <= 1.25 * PATIENCE_SECONDS


def test_a_store_that_is_away_is_not_a_model_that_gives_no_answer() -> None:
    error = StoreUnavailable("the store is away")
    error.__cause__ = aiohttp.ClientConnectionError("refused")
    assert is_fault(error)
    assert find_no_answer(error) is None
