"""Many changes in one request."""

from lightning_core.errors import StoreError
from lightning_http.auth import Role
from lightning_http.call import explain
from lightning_http.messages import (
    PREFIX,
    AttemptOutcome,
    RolloutOutcome,
    UpdateManyOutcome,
    UpdateManyRequest,
)
from lightning_http.routes.attempts import change_attempt
from lightning_http.routes.rollouts import change_rollout
from lightning_http.routing import CallOf, Routes

routes = Routes("updates", PREFIX)

_NAMES = {"rollout_id", "attempt_id", "request_id"}


@routes.post("/updates", role=Role.RUNNER)
async def update_many(call: CallOf, body: UpdateManyRequest) -> UpdateManyOutcome:
    """Change many rollouts and attempts, each by itself; what is refused does not stop the others."""
    outcome = UpdateManyOutcome(rollouts=[], attempts=[])
    for one in body.rollouts:
        fields = one.model_dump(include=one.model_fields_set - _NAMES)
        try:
            rollout = await change_rollout(call, one.rollout_id, fields, one.request_id)
            outcome.rollouts.append(RolloutOutcome.model_construct(rollout=rollout))
        except StoreError as exc:
            outcome.rollouts.append(RolloutOutcome(**_refused(exc)))
    for each in body.attempts:
        fields = each.model_dump(include=each.model_fields_set - _NAMES)
        try:
            attempt = await change_attempt(call, each.rollout_id, each.attempt_id, fields, each.request_id)
            outcome.attempts.append(AttemptOutcome.model_construct(attempt=attempt))
        except StoreError as exc:
            outcome.attempts.append(AttemptOutcome(**_refused(exc)))
    return outcome


def _refused(exc: StoreError) -> dict[str, str]:
    _, answer = explain(exc)
    return {"error": answer["error"], "message": answer["message"]}
