"""From a request to a call: whose it is, whether it may be made, and what it asks."""

from dataclasses import dataclass
from typing import Any

from lightning_http.auth import Role

from lightning_proxy.apis import Dialect, dialect_of
from lightning_proxy.call import Call, Route
from lightning_proxy.jsons import dump, parse_object
from lightning_proxy.owner import Owner, parent_span
from lightning_proxy.paths import PREFIX, RESPONSES, counts_tokens, quoted
from lightning_proxy.replicas import Replica
from lightning_proxy.request import Refused, Request, invalid
from lightning_proxy.service import ProxyService


@dataclass(frozen=True, slots=True)
class Caller:
    """Who makes a request, by its URL, its key and its headers."""

    owner: Owner | None
    """The attempt; None for a caller of none."""
    role: Role
    """What the key opens."""
    may_manage: bool = False
    """Whether the caller may change what the backend has and serves: it has the algorithm's key."""
    purpose: str | None = None
    """What a call is for, where the agent itself does not make it: `judge`."""


async def read_call(service: ProxyService, request: Request, caller: Caller, below: str, *, is_of_api: bool) -> Call:
    """Return the call that a request makes.

    Args:
        service: The proxy.
        request: The request, whose body is read.
        caller: Who makes it.
        below: Its path below `/v1`.
        is_of_api: Whether it is under `/v1`.

    Raises:
        Refused: When the caller may not make it.
    """
    owner, dialect = caller.owner, dialect_of(below) if request.method == "POST" else None
    if dialect is None and not is_of_api:
        raise Refused(404, "unknown_path", f"the proxy serves what is under {PREFIX}; got {request.path!r}")
    is_free = counts_tokens(request.method, below)
    is_management = not (dialect is not None or is_free or service.open_paths.has(request.method, below))
    if is_management and below.endswith(":countTokens"):
        raise Refused(404, "not_served", "the proxy counts no tokens; an answer's usageMetadata has them")
    if is_management and not caller.may_manage:
        raise _closed(f"{request.method} {PREFIX}{below}", f"{request.method} {below[1:]}")
    if owner is not None:
        await service.attempts.require(owner, has_key=caller.role == Role.ATTEMPT)
        service.outbox.require_room()
    elif not is_management and not service.settings.allow_unattributed:
        ways = "the key of the attempt, or the headers x-rollout-id and x-attempt-id"
        url = "the base URL of ProxyLLM.get_base_url(rollout_id, attempt_id)"
        raise Refused(403, "unattributed", f"the call belongs to no attempt: use {url}, {ways}")
    body = await request.read_body(service.settings.max_body_bytes)
    if owner is not None:
        service.attempts.require_not_ended(owner)  # while its body came, or the store was asked
    fields = parse_object(body) if dialect is not None or body[:1] == b"{" else None
    if dialect is not None:
        fields = _checked(service, dialect, fields, below, request.query)
    model = None if fields is None or not isinstance(fields.get("model"), str) else fields["model"]
    target = service.models.resolve(model, service.replicas.models())
    if dialect is not None and fields is not None:
        asked, fields = fields, service.models.with_params(target, dialect.path, fields)
        body = body if fields is asked else dump(fields)
    route = Route(target, body, fields)
    if dialect is None and model is None and (count := len(service.replicas.all)) > 1:
        why = f"the proxy has {count} backends, so it is not clear which one it is for"
        message = f"the call names no model in a JSON body, and {why}; make it through a proxy with one backend"
        raise Refused(400, "no_model", message)
    pinned = None
    if dialect is not None and fields is not None and dialect.path == RESPONSES:
        pinned = _find_previous(service, owner, fields, route)
    return Call(
        request,
        quoted(below) if dialect is None else dialect.path,
        owner,
        caller.purpose,
        parent_span(request.headers),
        dialect,
        is_stream=fields is not None and fields.get("stream") is True,
        model=model,
        pinned=pinned,
        is_free=is_free or is_management,
        is_management=is_management,
        route=route,
    )


def _checked(
    service: ProxyService, dialect: Dialect, fields: dict[str, Any] | None, below: str, query: str
) -> dict[str, Any]:
    if fields is None:
        raise Refused(400, "invalid_json", "the request's body is not a JSON object")
    fields = dialect.read_request(fields, below, query)
    if not isinstance(fields.get("model"), str | None):
        raise invalid(f"model is {fields['model']!r:.100}; it is the name of one")
    models = service.replicas.models()
    if fields.get("model") is None and len(models) > 1:
        raise Refused(400, "no_model", f"the call names no model; there are: {', '.join(models)}")
    return fields


def _find_previous(service: ProxyService, owner: Owner | None, fields: dict[str, Any], route: Route) -> Replica | None:
    """Return the replica with the response that a call continues; None where it may go anywhere of its model.

    One that was converted is put before what is asked.

    Raises:
        Refused: When the call leads to what belongs to others, or is not recorded.
    """
    resolved = service.responses.resolve(None if owner is None else owner.attempt_id, fields)
    if resolved is not fields:
        route.fields, route.body, fields = resolved, dump(resolved), resolved
    opens = service.open_paths.has
    if fields.get("conversation") is not None and not opens("GET", "/conversations/id"):
        raise _closed("conversation, which belongs to the backend's account,", "conversations")
    if fields.get("background") and not opens("GET", f"{RESPONSES}/id"):
        raise _closed("background, whose answer is fetched later,", "responses")
    previous = fields.get("previous_response_id")
    if previous is None:
        return None
    replica = service.replicas.of_response(owner, str(previous))
    if replica is None and not opens("GET", f"{RESPONSES}/{previous}"):
        message = f"the proxy knows no response {previous!r:.200} of this attempt; send the whole conversation"
        raise Refused(400, "previous_response_not_found", message)
    # The agent may go on with another model, which may be elsewhere.
    goes_on = replica is None or fields.get("model") is None or route.target == replica.model_name
    return replica if goes_on else None


def _closed(what: str, entry: str) -> Refused:
    opens = (
        f"allow_paths=[{entry!r}] of the proxy opens it, with the backend's key; the key of the proxy itself does, too"
    )
    why = "is not for agents: the proxy does not record it or know its price"
    return Refused(403, "not_allowed", f"{what} {why}. {opens}")
