"""Requests that a web page makes a browser send: those of other sites are refused, also without a body."""

import pytest
from lightning_http import LightningStoreServer

OTHER_SITES = [
    {"Origin": "https://evil.example"},
    {"Origin": "http://127.0.0.1:1"},
    {"Origin": "null"},
    {"Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"},
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site"},
]


@pytest.mark.parametrize("headers", OTHER_SITES)
async def test_a_page_of_another_site_changes_nothing(server, memory, ask, headers):
    queued = await memory.enqueue_rollout("a")
    for path in ("run/end", "queues/rollouts/dequeue", f"rollouts/{queued.rollout_id}"):
        status, answer = await ask("POST", f"{server.url}/v1/agl/{path}", headers=headers)
        assert (status, answer["error"]) == (403, "AccessDenied")
        assert "--cors-origin" in answer["message"]
    assert (await ask("DELETE", f"{server.url}/v1/agl/run", headers=headers))[0] == 403
    assert (await memory.dequeue_rollout()).rollout_id == queued.rollout_id


@pytest.mark.parametrize("site", [None, "same-origin", "none"])
async def test_programs_and_pages_of_the_server_itself_may_ask(server, ask, site):
    own = [{}, {"Origin": server.url}] if site is None else [{"Sec-Fetch-Site": site, "Origin": server.url}]
    for headers in own:
        assert (await ask("POST", f"{server.url}/v1/agl/queues/rollouts/dequeue", headers=headers))[0] == 200


async def test_a_link_of_another_site_can_be_followed(server, ask):
    headers = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
    assert (await ask("GET", f"{server.url}/openapi.json", headers=headers))[0] == 200
    reads = {"Origin": "https://evil.example"}  # a script that reads the answer; a link sends no such header
    assert (await ask("GET", f"{server.url}/openapi.json", headers=reads))[0] == 403


@pytest.mark.parametrize("allowed", ["https://board.example", "*"])
async def test_a_page_of_an_allowed_origin_may_ask(memory, ask, allowed):
    async with LightningStoreServer(memory, cors_allow_origins=[allowed]) as server:
        url = f"{server.url}/v1/agl/queues/rollouts/dequeue"
        headers = {"Origin": "https://board.example", "Sec-Fetch-Site": "cross-site"}
        assert (await ask("POST", url, headers=headers))[0] == 200
        other = await ask("POST", url, headers={**headers, "Origin": "https://evil.example"})
        assert other[0] == (200 if allowed == "*" else 403)
