"""Plugins that fail: those of this process are in the result, and those of runner processes in the log."""

from typing import Any

import pytest
from lightning_http.processes import ProcessesStrategy

from lightning_core.execution import ExecutionStrategy, LocalStrategy
from lightning_core.runs.result import FailedHook
from lightning_core.trainer import Trainer

pytestmark = pytest.mark.usefixtures("process_agents", "no_process_left")


TOLD = {
    "lightning_rollout_end": "ValueError: reward 4.0, spans 2, succeeded, succeeded",
    "lightning_run_end": "RuntimeError: succeeded",
}


@pytest.mark.parametrize("strategy", [LocalStrategy(n_runners=2), ProcessesStrategy(n_runners=2, concurrency=2)])
def test_plugin_that_stays_and_fails_is_in_the_result_wherever_runners_are(strategy: ExecutionStrategy, agents: Any):
    result = Trainer(algorithm="baseline", strategy=strategy, hooks=[agents.StayingFailing()]).fit(
        agents.double, [1, 2, 3]
    )
    assert result.rollouts.succeeded == 3
    found = {each.hook: each for each in result.failed_hooks}
    began = found.pop("lightning_rollout_start")
    assert (began.plugin, began.count) == ("StayingFailing", 3)
    assert began.cause in ("LookupError: no 2", "OSError: no")
    assert found == {hook: FailedHook("StayingFailing", hook, cause, 1) for hook, cause in TOLD.items()}


def test_plugin_that_fails_in_a_runner_process_is_logged_here(agents: Any, caplog: pytest.LogCaptureFixture):
    strategy = ProcessesStrategy(n_runners=2)
    result = Trainer(algorithm="baseline", strategy=strategy, hooks=[agents.Failing()]).fit(agents.double, [1, 2, 3])
    assert result.rollouts.succeeded == 3
    assert [each.hook for each in result.failed_hooks] == ["lightning_run_end"]
    for hook in ("lightning_rollout_start", "lightning_rollout_end"):
        assert f"hook={hook}" in caplog.text
    assert "ValueError: reward 4.0" in caplog.text


def test_class_that_stays_is_the_one_that_was_told_of_the_run(agents: Any):
    class Staying:
        stays_with_algorithm = True

        def lightning_run_start(self, run_id: str) -> None:
            self.run_id = run_id

        def lightning_rollout_end(self, rollout: Any) -> None:
            raise LookupError(self.run_id)

    trainer = Trainer(algorithm="baseline", strategy=ProcessesStrategy(), hooks=[Staying])
    result = trainer.fit(agents.double, [1])
    assert [each.cause for each in result.failed_hooks] == [f"LookupError: {result.run_id}"]
