"""How the models are reached, and that their key stays secret."""

import asyncio
import logging
import traceback

import pytest
from lightning_apo import APO
from toy_models import ToyModels
from toy_run import OPTIONS, ToyRun

from lightning_core.errors import AlgorithmError

KEY = "sk-very-secret-key"


@pytest.fixture(autouse=True)
def environment(models: ToyModels, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", models.url)
    monkeypatch.setenv("OPENAI_API_KEY", KEY)


async def test_the_environment_says_where_the_models_are(models: ToyModels) -> None:
    result = await ToyRun().fit({"name": "apo", **OPTIONS, "beam_rounds": 1})
    assert result.status == "succeeded"
    assert models.keys == {f"Bearer {KEY}"}


@pytest.mark.parametrize("echoed", [f"Incorrect API key provided: {KEY}", "out of order"])
async def test_the_key_is_in_no_log_and_no_error(
    models: ToyModels, caplog: pytest.LogCaptureFixture, echoed: str
) -> None:
    caplog.set_level(logging.INFO, logger="lightning_apo")
    models.status, models.error = 401, echoed
    with pytest.raises(AlgorithmError) as caught:
        await ToyRun().fit(APO(**OPTIONS))
    shown = "".join(traceback.format_exception(caught.value)) + caplog.text
    assert "AuthenticationError" in shown
    assert KEY not in shown


async def test_no_more_than_eight_requests_are_under_way_at_once(models: ToyModels) -> None:
    under_way = peak = 0

    async def count(model: str) -> None:
        nonlocal under_way, peak
        under_way += 1
        peak = max(peak, under_way)
        await asyncio.sleep(0.05)
        under_way -= 1

    models.before_answer = count
    wide = {**OPTIONS, "branch_factor": 16, "beam_width": 4, "beam_rounds": 1}
    async with models.client() as client:
        await ToyRun().fit(APO(client, **wide))
    assert 1 < peak <= 8
