import pytest

from lightning_core.runner import LitAgentRunner
from lightning_core.testing.runner import RunnerSuite
from lightning_core.tracer import OtelTracer

pytestmark = pytest.mark.usefixtures("nothing_left_running")


class TestLitAgentRunner(RunnerSuite):
    def make_runner(self, *, max_rollouts: int | None = None) -> LitAgentRunner:
        return LitAgentRunner(OtelTracer(), max_rollouts=max_rollouts)
