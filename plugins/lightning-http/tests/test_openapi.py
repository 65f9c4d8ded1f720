"""The OpenAPI document, and what any program makes of it."""

import asyncio
from typing import Any

import schemathesis
from hypothesis import HealthCheck, Phase, settings
from lightning_http.app import application
from lightning_http.auth import Keys
from lightning_http.server import Gate
from lightning_http.service import Limits, Service
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


async def test_the_values_that_a_query_takes_are_documented(server, ask):
    _, document = await ask("GET", server.url + "/openapi.json")
    operation = document["paths"]["/v1/agl/rollouts"]["get"]
    schemas = {parameter["name"]: parameter["schema"] for parameter in operation["parameters"]}
    statuses = schemas["status_in"]["anyOf"][0]["items"]["enum"]
    for name, wrong, allowed in (
        ("status_in", "done", statuses),
        ("sort_by", "mood", schemas["sort_by"]["anyOf"][0]["enum"]),
        ("offset", -1, [schemas["offset"]["minimum"]]),
        ("limit", -2, [schemas["limit"]["minimum"]]),
    ):
        status, _ = await ask("GET", f"{server.url}/v1/agl/rollouts?{name}={wrong}")
        assert status == (400 if name in ("status_in", "sort_by") else 422), name
        for value in allowed:
            status, _ = await ask("GET", f"{server.url}/v1/agl/rollouts?{name}={value}")
            assert status == 200, (name, value)


async def test_every_route_is_documented_with_its_errors_and_its_key(server, ask):
    status, document = await ask("GET", server.url + "/openapi.json")
    assert status == 200
    operations = [operation for methods in document["paths"].values() for operation in methods.values()]
    assert len({operation["operationId"] for operation in operations}) == len(operations)
    for operation in operations:
        assert operation["summary"]
        if operation["operationId"] != "health":
            assert operation["security"] == [{"HTTPBearer": []}]
            assert "ErrorAnswer" in str(operation["responses"]["4XX"])
            assert "ErrorAnswer" in str(operation["responses"]["5XX"])
        else:
            assert "security" not in operation
    assert document["paths"]["/metrics"]["get"]["responses"]["200"]["content"].keys() == {"text/plain"}
    assert "application/x-protobuf" in document["paths"]["/v1/traces"]["post"]["responses"]["200"]["content"]
    claimed = document["components"]["schemas"]["ClaimedRollout"]["properties"]
    assert {"rollout_id", "attempt", "attempt_key"} <= claimed.keys()
    assert "RolloutConfig" in document["components"]["schemas"]
    assert set(document["components"]["schemas"]["RolloutConfig"]["properties"]) == set(RolloutConfig.model_fields)
