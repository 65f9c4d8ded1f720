"""The OpenAPI document, and what any program makes of it."""

import asyncio
from typing import Any

import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis.checks import not_a_server_error

from lightning_core.store import InMemoryLightningStore
from lightning_core.store.http.app import application
from lightning_core.store.http.auth import Keys
from lightning_core.store.http.gate import Gate
from lightning_core.store.http.service import Limits, Service
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
    max_examples=15,
    derandomize=True,
    database=None,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
def test_no_request_makes_the_server_fail(case: Any) -> None:
    case.call_and_validate(checks=[not_a_server_error])


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
    claimed = document["components"]["schemas"]["ClaimedRollout"]["properties"]
    assert {"rollout_id", "attempt", "attempt_key"} <= claimed.keys()
    assert "RolloutConfig" in document["components"]["schemas"]
    assert set(document["components"]["schemas"]["RolloutConfig"]["properties"]) == set(RolloutConfig.model_fields)
