"""Which model comes of a training: what it is called while it is measured, and what is reported."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import pytest
from lightning_verl.ending import Ending, Enough
from lightning_verl.manager import RolloutManager
from lightning_verl.outcome import Outcome
from lightning_verl.serving import RESOURCE, Serving

from lightning_core.types import LLM, NamedResources, ProxyLLM


class Served:
    """Takes the names under which the policy is measured."""

    name = "tiny"

    def __init__(self) -> None:
        self.names: list[str] = []

    def measure(self, model: str) -> NamedResources:
        self.names.append(model)
        return self.measured(model)

    def measured(self, model: str) -> NamedResources:
        return {RESOURCE: ProxyLLM(endpoint="http://127.0.0.1:1/v1", model=model)}

    async def resources_id(self, resources: NamedResources) -> str:
        return "rs-1"


class Measures:
    """Gives the number of the step as the reward."""

    def __init__(self) -> None:
        self.ending = Ending()

    async def test(self, resources: NamedResources, *, step: int) -> float:
        return float(step)

    async def validate(self, resources: NamedResources, *, step: int) -> dict[str, float]:
        return {"val/reward": float(step)}


class Told:
    """An outcome with what it says."""

    def __init__(self, start: str, *, has_test: bool = True) -> None:
        self.serving = Served()
        self.start: NamedResources = {}
        self.reports: list[tuple[dict[str, float | None], str | None]] = []
        self.manager = Measures()
        self.outcome = Outcome(
            manager=cast(RolloutManager, self.manager),
            serving=cast(Serving, self.serving),
            start=start,
            folder=lambda step: Path(f"/run/{step}"),
            has_test=has_test,
            set_start=self.start.update,
            report=self.report,
        )

    def report(
        self, metrics: Mapping[str, float | None], *, step: int | None = None, best_resources: Any = None
    ) -> None:
        self.reports.append((dict(metrics), best_resources and best_resources[RESOURCE].model))


async def test_the_model_is_measured_before_and_after_under_the_names_of_what_it_is() -> None:
    told = Told("owner/model")
    await told.outcome.begin(0)
    await told.outcome.validate(1)
    await told.outcome.save(2)
    await told.outcome.validate(2)
    await told.outcome.end(2)
    assert told.serving.names == ["owner/model", "tiny:step-1", "/run/2", "/run/2"]
    assert told.reports == [
        ({"test_reward_initial": 0.0}, None),
        ({}, "/run/2"),
        ({}, "/run/2"),
        ({"test_reward": 2.0}, None),
    ]
    assert isinstance(told.start[RESOURCE], LLM)
    assert told.start[RESOURCE].model == "owner/model"


async def test_one_that_goes_on_from_a_checkpoint_is_not_measured_as_the_one_at_the_start() -> None:
    told = Told("owner/model")
    await told.outcome.begin(4)
    await told.outcome.end(4)  # there was nothing left to learn
    assert told.reports == [({}, "/run/4"), ({"test_reward": 4.0}, None)]


@pytest.mark.parametrize("has_test", [False, True])
async def test_one_that_is_not_saved_has_a_name_of_its_own(has_test: bool) -> None:
    told = Told("owner/model", has_test=has_test)
    await told.outcome.begin(0)
    await told.outcome.end(3)
    assert ({}, "tiny:step-3") in told.reports
    assert (({"test_reward": 3.0}, None) in told.reports) is has_test


async def test_a_model_in_a_folder_is_called_by_its_whole_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tiny").mkdir()
    monkeypatch.chdir(tmp_path)
    told = Told("tiny")  # as the policy itself is called
    await told.outcome.begin(0)
    assert told.serving.names == [str(tmp_path / "tiny")]


async def test_the_newest_model_is_reported_where_nothing_can_be_measured_any_more() -> None:
    told = Told("owner/model")
    await told.outcome.begin(0)
    await told.outcome.save(2)
    told.manager.ending.ask()
    with pytest.raises(Enough):
        await told.outcome.validate(2)
    with pytest.raises(Enough):
        await told.outcome.end(2)
    assert told.reports[-1] == ({}, "/run/2")
