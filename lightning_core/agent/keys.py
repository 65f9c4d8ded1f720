"""Whether a model can be called without its key."""

import aiohttp

from lightning_core.errors import Fault
from lightning_core.types import LLM

_ANSWER_SECONDS = 10.0


async def wants_key(llm: LLM) -> bool:
    """Ask the server of a model whether it answers nobody without a key.

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
