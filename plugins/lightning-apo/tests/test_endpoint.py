"""How the models are reached, and that their key stays secret."""

import asyncio
import logging
import traceback
from typing import Any

import pytest
from lightning_apo import APO
from toy_models import ToyModels
from toy_run import OPTIONS, ToyRun

from lightning_core.errors import AlgorithmError

KEY = "sk-very-secret-key"


async def test_endpoint_options_say_where_the_models_are(models: ToyModels) -> None:
    result = await ToyRun().fit({"name": "apo", **OPTIONS, "beam_rounds": 1, "base_url": models.url, "api_key": KEY})
    assert result.status == "succeeded"
    assert models.keys == {f"Bearer {KEY}"}


@pytest.mark.parametrize("echoed", [f"Incorrect API key provided: {KEY}", "out of order"])
async def test_the_key_is_in_no_log_and_no_error(
    models: ToyModels, caplog: pytest.LogCaptureFixture, echoed: str
) -> None:
    caplog.set_level(logging.INFO, logger="lightning_apo")
    models.status, models.error = 401, echoed
    with pytest.raises(AlgorithmError) as caught:
        await ToyRun().fit(APO(**OPTIONS, base_url=models.url, api_key=KEY))
    shown = "".join(traceback.format_exception(caught.value)) + caplog.text
    assert "AuthenticationError" in shown
    assert KEY not in shown


def test_a_client_and_options_for_one_are_refused() -> None:
    client: Any = object()
    with pytest.raises(ValueError, match="api_key and async_openai_client are both given") as caught:
        APO(client, api_key=KEY)
    assert KEY not in str(caught.value)


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
