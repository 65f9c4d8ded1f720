import pytest

from lightning_core.algorithm import Algorithm, Baseline
from lightning_core.testing.algorithm import AlgorithmSuite

pytestmark = pytest.mark.usefixtures("nothing_left_running")


class TestBaseline(AlgorithmSuite):
    def make_algorithm(self, *, seed: int) -> Algorithm:
        return Baseline(n_epochs=2)
