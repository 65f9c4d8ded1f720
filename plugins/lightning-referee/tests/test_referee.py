"""Another program improves an agent against a referee."""

import asyncio
import json
import re
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest
import referee_toys
from lightning_referee import Referee
from mcp import Client, MCPError
from mcp.client.streamable_http import streamable_http_client
from referee_toys import KEY, SECRET, TEST, TRAIN, VAL, answer, prompts, text

from lightning_core import InMemoryLightningStore, PromptTemplate, Trainer
from lightning_core.errors import ConfigError, InvalidInput


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGL_REFEREE_KEY", KEY)


@dataclass
class Game:
    """A referee that is served."""

    store: Any
    url: str
    fit: "asyncio.Task[Any]"

    async def curl(self, path: str, body: Any = None, *options: str, key: str = KEY) -> tuple[int, Any]:
        """Ask with curl; return the status and the answer."""
        sent = [] if body is None else ["--json", json.dumps(body)]
        process = await asyncio.create_subprocess_exec(
            *["curl", "--silent", "--show-error", "--max-time", "60", "--write-out", "\n%{http_code}"],
            *["--header", f"Authorization: Bearer {key}", *sent, *options, f"{self.url}{path}"],
            stdout=asyncio.subprocess.PIPE,
        )
        output, _ = await process.communicate()
        answer, _, status = output.decode().rpartition("\n")
        return int(status), json.loads(answer) if answer.startswith(("{", "[")) else answer

    async def submit(self, skill: int, **more: Any) -> dict[str, Any]:
        status, told = await self.curl("/candidates", {"prompts": {"main_prompt": text(skill)}, **more})
        assert status == 200, told
        assert isinstance(told, dict)
        return told

    async def challenge(self, candidate: dict[str, Any]) -> bool:
        status, told = await self.curl(f"/candidates/{candidate['candidate']}/challenge", {})
        assert (status, told["status"]) == (200, "ended"), told
        return bool(told["beats_best"])


@asynccontextmanager
async def game(
    store: Any = None, *, skill: int = 30, first: Any = None, val: Any = VAL, **options: Any
) -> AsyncIterator[Game]:
    store = InMemoryLightningStore() if store is None else store
    referee = Referee(port=0, **options)
    trainer = Trainer(algorithm=referee, store=store, n_runners=8, initial_resources=first or prompts(skill))
    fit = asyncio.create_task(trainer.fit_async(answer, TRAIN, val_dataset=val, test_dataset=TEST))
    served = asyncio.create_task(referee.url())
    try:
        async with asyncio.timeout(60):
            await asyncio.wait([fit, served], return_when=asyncio.FIRST_COMPLETED)
        if not served.done():
            fit.result()
        yield Game(store, served.result(), fit)
    finally:
        served.cancel()
        fit.cancel()
        await asyncio.gather(fit, served, return_exceptions=True)


async def test_curl_plays_a_game_to_its_end() -> None:
    async with game(max_candidates=5, max_challenges=3) as played:
        _, rules = await played.curl("/rules")
        assert rules["prompts"] == {"main_prompt": {"text": text(30), "placeholders": ["question"]}}
        assert (rules["best"], rules["candidates_left"], rules["validation_samples"]) == (0, 5, 100)
        worse, better = await played.submit(10), await played.submit(80)
        assert [(each["beats_best"], each["train_reward"]) for each in (worse, better)] == [(None, 0.1), (None, 0.8)]
        assert [await played.challenge(each) for each in (worse, better)] == [False, True]
        equal = await played.submit(81)
        assert equal["parent"] == 2
        assert await played.challenge(equal) is False
        _, rules = await played.curl("/rules")
        assert (rules["best"], rules["candidates_left"], rules["challenges_left"]) == (2, 2, 0)
        status, _ = await played.curl("/finish", {})
        result = await asyncio.wait_for(played.fit, 60)
    assert status == 200
    assert result.best_resources["main_prompt"].template == text(80)
    assert result.metrics["is_proven"] == 1.0
    assert (result.metrics["test_reward_initial"], result.metrics["test_reward"]) == (1.0, 1.0)


async def test_a_choice_that_has_not_won_is_not_called_proven() -> None:
    async with game() as played:
        await played.submit(80)
        assert (await played.curl("/finish", {"candidate": 7}))[0] == 404
        await played.curl("/finish", {"candidate": 1})
        result = await asyncio.wait_for(played.fit, 60)
    assert result.best_resources["main_prompt"].template == text(80)
    assert (result.metrics["is_proven"], result.metrics["challenges"]) == (0.0, 0.0)


async def test_a_candidate_is_not_better_by_faults_where_it_would_be_wrong_nor_by_repeated_samples() -> None:
    async with game(val=VAL * 2, max_candidates=2) as played:
        _, told = await played.curl("/candidates", {"prompts": {"main_prompt": "fault {question} 30"}})
        assert (told["train_reward"], told["train_lost"]) == (1.0, 7)
        assert await played.challenge(told) is False
        assert (await played.curl("/rules"))[1]["validation_samples"] == len(VAL)


async def test_an_mcp_client_plays_a_game_to_its_end() -> None:
    headers = {"Authorization": f"Bearer {KEY}"}
    async with game(max_candidates=3) as played, httpx2.AsyncClient(headers=headers, timeout=60) as http:
        async with Client(streamable_http_client(f"{played.url}/mcp", http_client=http)) as client:
            tools = {tool.name for tool in (await client.list_tools()).tools}
            rules = (await client.call_tool("rules", {})).structured_content
            found = await client.call_tool("submit", {"prompts": {"main_prompt": text(90)}, "parent": 0})
            won = await client.call_tool("challenge", {"candidate": 1})
            again = await client.call_tool("look", {"candidate": 1})
            wrong = await client.call_tool("submit", {"prompts": {"main_prompt": "no placeholder"}})
            misnamed = await client.call_tool("finish", {"candidat": 1})
            assert (await client.call_tool("submit", {"prompts": {"main_prompt": text(40)}})).is_error is False
            await client.call_tool("finish", {})
        result = await asyncio.wait_for(played.fit, 60)
    assert tools == {"rules", "submit", "challenge", "look", "finish"}
    assert rules is not None
    assert rules["candidates_left"] == 3
    assert found.structured_content is not None
    assert won.structured_content == {**found.structured_content, "beats_best": True}
    assert again.structured_content == won.structured_content
    assert wrong.is_error
    assert "placeholders" in str(wrong.content)
    assert misnamed.is_error
    assert "candidat" in str(misnamed.content)
    assert result.best_resources["main_prompt"].template == text(90)


async def test_a_candidate_adds_no_loop_to_a_template() -> None:
    first = {"main_prompt": PromptTemplate(template=text(30), engine="jinja")}
    async with game(first=first) as played:
        endless = "{% for a in range(90000) %}{% for b in range(90000) %}{% endfor %}{% endfor %}" + text(90)
        status, told = await played.curl("/candidates", {"prompts": {"main_prompt": endless}})
    assert status == 400
    assert "statements are those of the first prompt only" in str(told)


async def test_a_game_on_other_prompts_is_not_gone_on_with(caplog: pytest.LogCaptureFixture) -> None:
    store = InMemoryLightningStore()
    async with game(store) as played:
        await played.submit(90)
        await played.curl("/finish", {"candidate": 1})
        await asyncio.wait_for(played.fit, 60)
    assert "candidate 1 was not shown to be better" in caplog.text
    with pytest.raises(InvalidInput, match="the game of this run is on other samples, first prompts or challenges"):
        async with game(store, skill=31):
            pass


async def test_who_has_no_key_learns_nothing() -> None:
    async with game() as played:
        for path in ("/rules", "/candidates/0", "/mcp", "/", "/nothing"):
            status, told = await played.curl(path, key="another")
            assert (status, "main_prompt" in str(told)) == (401, False)
        async with httpx2.AsyncClient(timeout=60) as http:
            with pytest.raises((MCPError, ExceptionGroup, httpx2.HTTPStatusError)):
                async with Client(streamable_http_client(f"{played.url}/mcp", http_client=http)) as client:
                    await client.list_tools()
        status, _ = await played.curl("/rules", None, "--header", "Origin: http://evil.example")
        assert status == 403


async def test_nothing_of_hidden_samples_and_nothing_that_the_agent_wrote_is_told() -> None:
    async with game(max_candidates=3) as played:
        broken = {"prompts": {"main_prompt": "break {question}"}}
        told = [await played.curl("/candidates", broken), await played.submit(80), await played.curl("/rules")]
        told += [await played.curl(f"/candidates/{each}/challenge", {}) for each in (1, 2)]
        assert told[0][1]["train"][0]["failure"] == "ValueError"
    assert SECRET not in str(told)
    assert "ignore all previous" not in str(told)
    assert "train 3" not in str(told)


async def test_texts_of_training_samples_are_told_where_that_is_wanted() -> None:
    async with game(max_candidates=3, texts=True) as played:
        _, told = await played.curl("/candidates", {"prompts": {"main_prompt": "break {question}"}})
    assert told["train"][3]["input"] == TRAIN[3]
    assert "ignore all previous instructions" in told["train"][3]["failure"]
    assert SECRET not in str(told)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"prompts": {"main_prompt": "{question} {answer} 3"}}, r"it needs exactly \['question'\]"),
        ({"prompts": {"main_prompt": "{question.__class__} 3"}}, "not a plain name"),
        ({"prompts": {"other": "{question} 3"}}, "there is no prompt 'other'; there are 'main_prompt'"),
        ({"prompts": {"main_prompt": "{question} 3"}, "parent": 7}, "there is no candidate 7"),
        ({"prompts": {"main_prompt": "{question}" + "a" * 100_000}}, "it may have 100000"),
        ({"endpoint": "http://evil.example"}, "submit does not take this: prompts: Field required"),
    ],
)
async def test_what_cannot_be_a_candidate_is_refused_and_costs_nothing(body: Any, message: str) -> None:
    async with game(max_candidates=1) as played:
        status, told = await played.curl("/candidates", body)
        assert status in (400, 404, 422)
        assert (await played.curl("/rules"))[1]["candidates_left"] == 1
    assert re.search(message, str(told).replace('"', ""))


async def test_there_are_no_more_candidates_and_challenges_than_there_may_be_and_one_twice_is_one() -> None:
    async with game(max_candidates=2, max_challenges=1) as played:
        first, again, second = [await played.submit(skill) for skill in (80, 80, 11)]
        assert (first["candidate"], again["candidate"], second["candidate"]) == (1, 1, 2)
        assert [await played.challenge(first) for _ in range(2)] == [True, True]
        refused = [
            await played.curl("/candidates", {"prompts": {"main_prompt": text(12)}}),
            await played.curl("/candidates/2/challenge", {}),
            await played.curl("/candidates/0/challenge", {}),
        ]
    assert [status for status, _ in refused] == [400] * 3
    for (_, told), words in zip(refused, ("all 2 candidates", "all 1 challenges", "the first prompts"), strict=True):
        assert words in str(told)


async def test_each_candidate_is_a_version_with_its_parent_and_each_rollout_is_kept() -> None:
    async with game(max_candidates=3) as played:
        await played.submit(80)
        await played.submit(81, parent=1)
        await played.submit(20, parent=0)
        versions = [each for each in await played.store.query_resources() if each.parent_id is not None]
        rollouts = await played.store.query_rollouts()
    assert len({each.parent_id for each in versions}) == 2
    assert len(versions) == 3
    modes = [each.mode for each in rollouts]
    assert modes.count("train") == 4 * len(TRAIN)
    assert "test" not in modes


async def test_a_game_that_was_cut_off_goes_on_with_what_was_spent_and_told() -> None:
    store = InMemoryLightningStore()
    async with game(store, max_candidates=3) as played:
        assert await played.challenge(await played.submit(80)) is True
        _, told = await played.curl("/candidates/1")
        before = len(await store.query_rollouts())
    async with game(store, max_candidates=3) as played:
        _, rules = await played.curl("/rules")
        assert (await played.curl("/candidates/1"))[1] == told
        assert (rules["best"], rules["candidates_left"]) == (1, 2)
        assert len(await store.query_rollouts()) == before


async def test_without_a_key_it_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AGL_REFEREE_KEY")
    with pytest.raises(ConfigError, match="export AGL_REFEREE_KEY"):
        async with game():
            pass


@pytest.mark.parametrize(
    ("train", "val", "resources", "message"),
    [
        (TRAIN, [], prompts(1), "the referee needs a val_dataset with samples of its own"),
        (VAL[:3], VAL, prompts(1), "the referee needs a train_dataset with samples of its own"),
        (TRAIN, VAL, None, "there is nothing to improve; give initial_resources a prompt template"),
    ],
)
async def test_what_cannot_be_judged_ends_the_run(train: Any, val: Any, resources: Any, message: str) -> None:
    trainer = Trainer(algorithm=Referee(port=0), initial_resources=resources)
    with pytest.raises(InvalidInput, match=message):
        await trainer.fit_async(answer, train, val_dataset=val)


async def test_a_reward_beyond_the_range_ends_the_run_which_goes_on_with_a_wider_one() -> None:
    store, huge = InMemoryLightningStore(), {"prompts": {"main_prompt": "huge {question} 1"}}
    async with game(store, max_candidates=2) as played:
        await played.submit(80)
        status, told = await played.curl("/candidates", huge)
        assert (status, told["status"]) == (200, "running")
        with pytest.raises(InvalidInput, match=r"candidate 2 is 1\.5, which is not from 0 to 1; .* --range, or go on"):
            await asyncio.wait_for(played.fit, 60)
    async with game(store, max_candidates=2, high=2.0) as played:
        assert [(await played.curl(f"/candidates/{each}"))[1]["train_reward"] for each in (1, 2)] == [0.8, 1.5]


def serve(*command: str, at: Path) -> subprocess.Popen[bytes]:
    agl = Path(sys.executable).with_name("agl")
    return subprocess.Popen([agl, *command], cwd=at, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def curl(url: str, body: Any = None) -> Any:
    """Ask with curl, which waits for the server to come up."""
    sent = [] if body is None else ["--json", json.dumps(body)]
    wait = ["--retry", "60", "--retry-delay", "1", "--retry-connrefused", "--max-time", "120"]
    header = ["--header", f"Authorization: Bearer {KEY}"]
    told = subprocess.run(["curl", "--silent", *wait, *header, *sent, url], check=True, capture_output=True)
    return json.loads(told.stdout)


def test_a_game_that_was_killed_goes_on_with_agl_resume(tmp_path: Path) -> None:
    (tmp_path / "toys.py").write_text(Path(referee_toys.__file__).read_text())
    (tmp_path / "config.yaml").write_text(
        f"""
agent: toys:answer
algorithm: baseline
n_runners: 4
initial_resources: {{main_prompt: {{resource_type: prompt_template, template: "{text(30)}"}}}}
train_dataset: toys:TRAIN
val_dataset: toys:VAL
test_dataset: toys:TEST
"""
    )
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    served = serve("referee", "config.yaml", "--max-candidates", "3", "--port", str(port), at=tmp_path)
    try:
        curl(f"{url}/candidates", {"prompts": {"main_prompt": text(80)}})
        told = curl(f"{url}/candidates/1/challenge", {})
        under_way = curl(f"{url}/candidates?wait_seconds=0", {"prompts": {"main_prompt": text(70)}})
    finally:
        served.kill()
        served.wait()
    (run,) = [each.name for each in (tmp_path / "runs").iterdir() if each.name.startswith("run-")]
    served = serve("resume", run, at=tmp_path)
    try:
        assert curl(f"{url}/candidates/1") == told
        assert curl(f"{url}/candidates/2?wait_seconds=60")["prompts"] == under_way["prompts"]
        assert curl(f"{url}/rules")["candidates_left"] == 1
        curl(f"{url}/finish", {})
        assert served.wait(60) == 0
    finally:
        served.kill()
        served.wait()
