"""The litellm library, imported when the first call is made: that takes seconds."""

import asyncio
import importlib
import os
import threading
from typing import Any

_lock = threading.Lock()


def _import() -> Any:
    with _lock:
        # Without this it asks the network for prices while it is imported; those that it ships are read instead.
        os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
        litellm: Any = importlib.import_module("litellm")
        litellm.suppress_debug_info = True  # it prints advice to stdout for each error
        # Anthropic's API in front of others is made of their chat API, which all of them have.
        litellm.use_chat_completions_url_for_anthropic_messages = True
        return litellm


async def library() -> Any:
    """Return the module. The first time it is imported in a thread, so that other calls go on."""
    return await asyncio.to_thread(_import)


def imported() -> Any:
    """Return the module, importing it where that has not happened yet."""
    return _import()


async def close_connections(litellm: Any) -> None:
    """Close the connections that the library keeps, and end what it does in the background."""
    logging_worker: Any = importlib.import_module("litellm.litellm_core_utils.logging_worker")
    await litellm.close_litellm_async_clients()
    await logging_worker.GLOBAL_LOGGING_WORKER.stop()
