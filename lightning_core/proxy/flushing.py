"""What a runner does before it reports an attempt: wait until the proxy's spans of it are in the store."""

import asyncio
from collections.abc import Iterable

import aiohttp

from lightning_core.errors import Fault, StoreUnavailable
from lightning_core.proxy.control import FLUSH_PATH
from lightning_core.proxy.jsons import dump, parse_object
from lightning_core.store.http.sessions import Sessions
from lightning_core.types import AttemptedRollout, ProxyLLM, Resource

_SECONDS = 60.0
_sessions = Sessions()


async def flush_calls(
    resources: Iterable[Resource], rollout: AttemptedRollout, *, key: str | None = None, end: bool = True
) -> bool:
    """Return when the store has all model calls that an attempt made through proxies, wherever these run.

    Args:
        resources: The rollout's; those that are a `ProxyLLM` say where the proxies are.
        rollout: The rollout with the attempt.
        key: The attempt's, or a runner's; None where no keys are needed.
        end: Whether the attempt has ended, so that no further call of it is let through.

    Returns:
        Whether there is a proxy at all: then the store may have spans that no tracer has seen.

    Raises:
        Fault: When a proxy is out of reach, or could not bring its spans to the store: what is known of the attempt is
            not all of it.
    """
    proxies = {resource.endpoint: resource for resource in resources if isinstance(resource, ProxyLLM)}
    for proxy in proxies.values():
        await _flush(proxy, rollout, proxy.api_key if key is None else key, end=end)
    return bool(proxies)


async def _flush(proxy: ProxyLLM, rollout: AttemptedRollout, key: str | None, *, end: bool) -> None:
    base = proxy.get_base_url(rollout.rollout_id, rollout.attempt.attempt_id).removesuffix("/v1")
    session = await _sessions.current()
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    try:
        async with asyncio.timeout(_SECONDS):
            async with session.post(base + FLUSH_PATH, data=dump({"end": end}), headers=headers) as response:
                if response.status < 300:
                    return
                told = (parse_object(await response.read()) or {}).get("error")
    except (aiohttp.ClientError, OSError, TimeoutError) as exc:
        raise Fault(f"the model proxy at {proxy.endpoint} is out of reach: {exc or type(exc).__name__}") from exc
    if isinstance(told, dict):
        told = told.get("message")
    said = str(told or f"it answered {response.status}")
    kind = StoreUnavailable if response.status == 503 else Fault
    raise kind(f"the model proxy at {proxy.endpoint} has not stored all calls of the attempt: {said}")
