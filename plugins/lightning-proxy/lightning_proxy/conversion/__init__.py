"""Messages and Responses in front of an engine that speaks chat: pure functions from each to chat, and back.

An engine gives token ids for chat. So a call of another API for conversations is sent as the chat that says the same,
and its answer is handed back in the agent's API, event by event where it is streamed. What chat cannot say is refused
by its name, and never left out.
"""

from collections.abc import Mapping

from lightning_proxy.conversion.base import Conversion, StreamConversion
from lightning_proxy.conversion.messages import MessagesConversion
from lightning_proxy.conversion.responses import ResponsesConversion, StoredItems

CONVERSIONS: Mapping[str, Conversion] = {
    "/messages": MessagesConversion(),
    "/responses": ResponsesConversion(),
}
"""By the path below `/v1`."""

__all__ = ["CONVERSIONS", "Conversion", "StoredItems", "StreamConversion"]
