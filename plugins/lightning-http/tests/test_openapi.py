"""The OpenAPI document, and what any program makes of it."""

import asyncio
import json
import re
from typing import Any

import httpx
import pytest
import schemathesis
from http_fixtures import KEY
from hypothesis import HealthCheck, Phase, settings
from jsonschema_rs import Draft202012Validator
from lightning_http.app import application
from lightning_http.auth import Keys
from lightning_http.call import Limits, Service
from lightning_http.server import Gate
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from lightning_core.store import InMemoryLightningStore
from lightning_core.types import RolloutConfig

LIMITS = Limits(max_wait_seconds=0.01)
"""So that nobody waits for what nobody does."""


MEMORY = InMemoryLightningStore(run_id="run-1")
STARTED = asyncio.run(MEMORY.start_rollout("a", config=RolloutConfig(max_attempts=5), request_id="r-1"))
"""There is one rollout, with the same ids in every run of the tests."""

schema = schemathesis.openapi.from_asgi(
    "/openapi.json", Gate(Service(MEMORY, Keys(None), LIMITS, local_only=False), application())
)


@schemathesis.serializer("application/x-protobuf")
def in_protobuf(context: Any, value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()


@schema.hook
def map_path_parameters(context: Any, path_parameters: dict[str, Any]) -> dict[str, Any]:
    return known(path_parameters)


@schema.hook
def map_body(context: Any, body: Any) -> Any:
    return known(body)


def known(fields: Any) -> Any:
    """Let half of the requests be about what there is."""
    if not isinstance(fields, dict) or len(str(fields)) % 2:
        return fields
    ids = {
        "rollout_id": STARTED.rollout_id,
        "attempt_id": STARTED.attempt.attempt_id,
        "rollout_ids": [STARTED.rollout_id],
        "attempts": [[STARTED.rollout_id, STARTED.attempt.attempt_id]],
    }
    return {name: ids.get(name, value) for name, value in fields.items()}


@schema.parametrize()
@settings(
    max_examples=5,
    derandomize=True,
    database=None,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
def test_the_server_answers_as_it_documents(case: Any) -> None:
    case.call_and_validate(
        checks=[
            not_a_server_error,
            status_code_conformance,
            content_type_conformance,
            response_schema_conformance,
        ]
    )


async def test_every_route_is_documented_with_its_errors(server, ask):
    status, document = await ask("GET", server.url + "/openapi.json")
    assert status == 200
    operations = [operation for methods in document["paths"].values() for operation in methods.values()]
    assert len({operation["operationId"] for operation in operations}) == len(operations)
    for operation in operations:
        assert operation["summary"]
        if operation["operationId"] != "health":
            assert "ErrorAnswer" in str(operation["responses"]["4XX"])
            assert "ErrorAnswer" in str(operation["responses"]["5XX"])
    assert document["paths"]["/metrics"]["get"]["responses"]["200"]["content"].keys() == {"text/plain"}
    assert "application/x-protobuf" in document["paths"]["/v1/traces"]["post"]["responses"]["200"]["content"]
    claimed = document["components"]["schemas"]["ClaimedRollout"]["properties"]
    assert {"rollout_id", "attempt", "attempt_key"} <= claimed.keys()
    assert "RolloutConfig" in document["components"]["schemas"]
    assert set(document["components"]["schemas"]["RolloutConfig"]["properties"]) == set(RolloutConfig.model_fields)


async def test_keys_are_documented_and_all_that_the_document_refers_to_is_in_it(guarded, ask):
    _, document = await ask("GET", guarded.url + "/openapi.json", headers={"Authorization": f"Bearer {KEY}"})
    assert document["components"]["securitySchemes"].keys() == {"HTTPBearer"}
    for path, methods in document["paths"].items():
        for operation in methods.values():
            wants_key = path != "/v1/agl/health"
            assert operation.get("security") == ([{"HTTPBearer": []}] if wants_key else None)
    places = set(re.findall(r'"\$ref": "(.*?)"', json.dumps(document)))
    assert places <= {f"#/components/schemas/{name}" for name in document["components"]["schemas"]}
    assert "#/components/schemas/Span-Input" in places


def properties(document: Any, schema: Any) -> dict[str, Any]:
    """Return the fields of a body that is a reference, or one or null."""
    place = schema.get("$ref") or schema["anyOf"][0]["$ref"]
    return document["components"]["schemas"][place.rpartition("/")[2]]["properties"]


SPAN = {
    "rollout_id": STARTED.rollout_id,
    "attempt_id": STARTED.attempt.attempt_id,
    "sequence_id": 0,
    "trace_id": "0" * 32,
    "name": "n",
    "status": {"status_code": "OK"},
    "resource": {"attributes": {}},
    "span_id": "1" * 16,
    "attributes": {},
}
ATTEMPT = f"/rollouts/{STARTED.rollout_id}/attempts/{STARTED.attempt.attempt_id}"


@pytest.mark.parametrize(
    ("path", "template", "body"),
    [
        ("/spans", "", SPAN),
        ("/spans/search", "", {"rollout_id": STARTED.rollout_id}),
        ("/queues/rollouts/dequeue", "", {}),
        ("/waits/rollouts", "", {"rollout_ids": [STARTED.rollout_id], "timeout": 0}),
        ("/rollouts", "", {"input": 1}),
        ("/rollouts/search", "", {}),
        ("/workers/w-1", "/workers/{worker_id}", {}),
        (ATTEMPT, "/rollouts/{rollout_id}/attempts/{attempt_id}", {}),
        (f"/rollouts/{STARTED.rollout_id}", "/rollouts/{rollout_id}", {}),
    ],
)
async def test_the_fields_that_may_be_null_or_numbers_are_documented(path, template, body):
    gate = Gate(Service(MEMORY, Keys(None), LIMITS, local_only=False), application())
    async with httpx.AsyncClient(transport=httpx.ASGITransport(gate), base_url="http://store/v1/agl") as http:
        document = (await http.get("http://store/openapi.json")).json()
        operation = document["paths"]["/v1/agl" + (template or path)]["post"]
        schema = operation["requestBody"]["content"]["application/json"]["schema"]
        validator = Draft202012Validator({**document, **schema})
        tried = [(name, value) for name in properties(document, schema) for value in (None, False, True, 1, 1.0, 1.5)]
        for name, value in tried:
            asked = {**body, name: value}
            answer = await http.post(path, json=asked)
            is_refused = answer.status_code in (400, 422)
            assert is_refused is not validator.is_valid(asked), (name, value, answer.text)
