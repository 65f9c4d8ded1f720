"""The report of a run in a browser: a file that is opened from disk, without a network."""

import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from browsers import Page, expect, shows, tabs
from live_stores import trained
from runs import HOSTILE, TASKS, Improves

from lightning_core import PromptTemplate, rollout
from lightning_core.algorithm import algo, run_batch
from lightning_core.algorithm.base import Reporter
from lightning_core.runs.folder import RunFolder
from lightning_core.store import LightningStore
from lightning_core.types import NamedResources


@asynccontextmanager
async def opened(path: Path, place: str = "") -> AsyncIterator[Page]:
    """Open a file during the block. Nothing but the file may be asked for."""
    asked: list[str] = []
    async with tabs(offline=True) as context:
        page = await context.new_page()
        page.on("request", lambda request: asked.append(request.url))
        await page.goto(f"{path.as_uri()}#/{place}")
        yield page
    assert {each.partition("#")[0] for each in asked} - {"data:,"} == {path.as_uri()}


async def test_pages_of_a_file(folder: RunFolder) -> None:
    pages = {
        "": [
            *("Reward on validation samples", "0.33→1.00", "3 samples, 1 more without a reward"),
            *("Validation reward by step", "3× ValueError: cannot add 17 apples"),
        ],
        "rollouts": ["12 of 12 rollouts", HOSTILE, "ValueError: cannot add 17 apples"],
        "rollouts?status=failed": ["3 of 12 rollouts"],
        "rollouts?text=hard": ["3 of 12 rollouts"],
        "prompts": ["v2, the best", "made from v1", "+think", "2 better, 0 worse, 1 the same, of 3", "+0.67"],
        "nowhere": ["Reward on validation samples"],
    }
    async with opened(folder.path / "report.html") as tab:
        for page, words in pages.items():
            await tab.evaluate("page => { location.hash = `#/${page}` }", page)
            await shows(tab, *words)


async def test_what_is_known_of_a_run_is_told_with_its_uncertainty_and_texts_as_they_are(tmp_path: Path) -> None:
    @algo
    async def measure(store: LightningStore, train_dataset: list[Any], report: Reporter) -> None:
        for step, known in enumerate([True, True, False, True, True]):
            ends = {"val_reward_low": 0.4, "val_reward_high": 0.6} if known else {}
            report({"val_reward": 0.5, **ends}, step=step)
        await run_batch(store, train_dataset, mode="train")

    @rollout
    async def fails_at_times(task: dict[str, Any]) -> float:
        if task["i"] > 3:
            raise ValueError("too large")
        return 0.5 if task["i"] == 0 else 1.0

    tasks = [{"name": "turned \u202e round", "i": each} for each in range(6)]
    folder = await trained(fails_at_times, tmp_path, tasks, algorithm=measure)
    async with opened(folder.path / "report.html") as tab:
        await shows(tab, "95% 0.48 to 1.00, 4 samples, 2 more without a reward")
        drawn = await tab.locator(".band").get_attribute("d")
        assert drawn is not None
        assert drawn.count("M") == 2  # no band where the interval is not known
        await tab.get_by_role("link", name="Rollouts", exact=True).click()
        await shows(tab, r"turned \u202e round")


async def test_the_page_of_a_rollout(folder: RunFolder) -> None:
    path = folder.path / "report.html"
    found = re.search(r'id="data">(.*?)</script>', path.read_text(), re.DOTALL)
    assert found is not None
    data: dict[str, Any] = json.loads(found[1])
    row = next(row for row in data["rollouts"] if data["inputs"][row["sample"]]["question"] == HOSTILE)
    async with opened(path, f"rollout?id={row['id']}") as tab:
        await shows(tab, f"asked {HOSTILE} with", "reward 0.00")
        assert await tab.title() != "owned"


async def test_a_file_is_read_with_the_keyboard_alone(folder: RunFolder) -> None:
    async with opened(folder.path / "report.html") as tab:
        await shows(tab, "Reward on validation samples")
        await tab.get_by_role("link", name="Rollouts", exact=True).focus()
        await tab.keyboard.press("Enter")
        await shows(tab, "12 of 12 rollouts")
        search = tab.get_by_label("Search samples, causes, ids")
        while not await search.evaluate("each => each === document.activeElement"):
            await tab.keyboard.press("Tab")
        await tab.keyboard.type("hard")
        await shows(tab, "3 of 12 rollouts")
        row = tab.locator("td.sample a").first
        while not await row.evaluate("each => each === document.activeElement"):
            await tab.keyboard.press("Tab")
        await tab.keyboard.press("Enter")
        await shows(tab, "Conversation")
        span = tab.locator("button.span").first
        await span.focus()
        await tab.keyboard.press("Enter")
        await expect(span).to_have_attribute("aria-expanded", "true")
        await tab.go_back()
        await shows(tab, "3 of 12 rollouts")


@pytest.mark.parametrize(
    ("rewards", "words", "ticks"),
    [
        ((0.0012, 0.0048), "0.0012→0.0048", ["0.000", "0.002", "0.004"]),
        ((-1e300, 1e300), "-1e300→1e300", ["-1e300", "0", "1e300"]),
    ],
)
async def test_rewards_of_any_size_are_told_apart(
    tmp_path: Path, rewards: tuple[float, float], words: str, ticks: list[str]
) -> None:
    @rollout
    async def gives(task: Any, prompt_template: PromptTemplate) -> float:
        return rewards["think" in prompt_template.template]

    first: NamedResources = {"main_prompt": PromptTemplate(template="first\n{task}")}
    folder = await trained(gives, tmp_path, val=TASKS[:2], algorithm=Improves(), initial_resources=first)
    async with opened(folder.path / "report.html") as tab:
        await shows(tab, words)
        await expect(tab.locator("svg.chart g.tick text")).to_have_text(ticks)
