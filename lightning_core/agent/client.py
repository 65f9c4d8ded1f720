"""A class of the user's own that speaks to a service."""

import inspect
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from lightning_core.agent.functions import is_coroutine_function, is_given_by_name
from lightning_core.errors import InvalidAgent
from lightning_core.registry import load_object

KEY_OPTION = "api_key"


def checked_client(client: str | type) -> Any:
    """Return the class.

    Raises:
        InvalidAgent: When it is no class, or has no async `chat`.
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
    """Tell whether a class says by name that it takes an option; whoever takes any may pass them on."""
    parameter = inspect.signature(client).parameters.get(option)
    return parameter is not None and is_given_by_name(parameter)


@asynccontextmanager
async def opened(client: Any, server_address: str, **options: Any) -> AsyncIterator[Any]:
    """Make a client for the block, and let go of it after: `async with`, or else `aclose` or `close`, where it has one.

    Args:
        client: The class.
        server_address: Where the service is.
        options: What it is told besides, where it takes it.
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
