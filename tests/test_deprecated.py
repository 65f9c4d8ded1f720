"""Options of agentlightning 0.3 that have another name, or no effect, are taken with a warning."""

import inspect
import warnings

import pytest

from lightning_core import Baseline, InMemoryLightningStore, LitAgent, LitAgentRunner, OtelTracer
from lightning_core.deprecated import deprecated
from lightning_core.errors import InvalidOptions
from lightning_core.execution import LocalStrategy
from lightning_core.registry import check_options


class Oven:
    @deprecated(renamed={"heat": "degrees"}, without_effect={"door": "it is always shut"})
    def __init__(self, *, degrees: int | None = None) -> None:
        """Heat up."""
        self.degrees = degrees


def test_renamed_option_is_passed_on_and_warned_of_where_it_is_given():
    with pytest.warns(DeprecationWarning, match=r"^Oven\(heat=\) is deprecated; use degrees=$") as caught:
        oven = Oven(heat=180)  # type: ignore[call-arg]
    assert oven.degrees == 180
    assert caught[0].filename == __file__


def test_new_name_wins_where_both_are_given():
    with pytest.warns(DeprecationWarning, match="use degrees=, which is given too, so heat is ignored"):
        assert Oven(heat=180, degrees=200).degrees == 200  # type: ignore[call-arg]


def test_option_without_effect_says_why():
    with pytest.warns(DeprecationWarning, match=r"^Oven\(door=\) has no effect: it is always shut; leave it out$"):
        Oven(door="open")  # type: ignore[call-arg]


def test_option_that_is_none_counts_as_not_given():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert Oven(heat=None, door=None, degrees=1).degrees == 1  # type: ignore[call-arg]


def test_an_unknown_option_is_an_error_as_ever():
    with pytest.raises(TypeError, match="unexpected keyword argument 'size'"):
        Oven(size=3)  # type: ignore[call-arg]


def test_signature_shows_what_there_is_and_former_options_are_none_that_a_check_refuses():
    assert list(inspect.signature(Oven).parameters) == ["degrees"]
    check_options("oven", {"heat": 180, "door": "open"}, Oven)
    with pytest.raises(InvalidOptions, match="has no option 'size'"):
        check_options("oven", {"size": 3}, Oven)


@pytest.mark.parametrize(
    ("make", "option"),
    [
        (lambda: Baseline(polling_interval=0.1), "polling_interval"),
        (lambda: InMemoryLightningStore(thread_safe=True), "thread_safe"),
        (lambda: InMemoryLightningStore(eviction_memory_threshold=0.5), "the store sqlite keeps more"),
        (lambda: LitAgentRunner(OtelTracer(), poll_interval=1.0), "waits are notified"),
        (lambda: LocalStrategy(main_thread="algorithm"), "one event loop"),
        (lambda: LitAgent(trained_agents="planner"), "agent_match="),
    ],
)
def test_components_take_the_options_of_0_3(make, option: str):
    with pytest.warns(DeprecationWarning, match=option):
        make()
