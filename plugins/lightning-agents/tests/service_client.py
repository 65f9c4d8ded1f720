"""A client of the user's own, as verl's recipe for agents that are services has it."""

from typing import Any

import aiohttp


class Client:
    """Speaks to a service in its own words."""

    def __init__(self, server_address: str, **options: Any) -> None:
        self.url = server_address

    async def chat(self, trace_id: str, sampling_params: dict[str, Any], **sample: Any) -> Any:
        asked = {"trace": trace_id, "params": sampling_params, "question": sample["question"]}
        async with aiohttp.ClientSession() as session, session.post(self.url, json=asked) as response:
            response.raise_for_status()
            return await response.json()
