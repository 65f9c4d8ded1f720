"""Hooks: who is told what, in which order, and what a broken plugin does to the others."""

import asyncio
import importlib.metadata
import inspect
import logging
import types
import typing
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from lightning_core import hookspecs
from lightning_core.agent import LitAgent
from lightning_core.errors import BrokenPlugin, InvalidComponent, LightningError
from lightning_core.plugins import HookFailure, Hooks, hookimpl
from lightning_core.registry import Registry
from lightning_core.runner import Runner
from lightning_core.runs import RolloutCounts
from lightning_core.tracer import Tracer
from lightning_core.types import Hook

HOOKS = {name: value for name, value in vars(hookspecs).items() if name.startswith("lightning_")}
EVENTS: list[str] = []
"""What the plugin of `install` was told; empty at the start of each test."""


@pytest.fixture(autouse=True)
def _no_events() -> None:
    EVENTS.clear()


class Recorder:
    """Writes down the run hooks that it is told."""

    def __init__(self, name: str, log: list[str]) -> None:
        self.name = name
        self.log = log

    @hookimpl
    def lightning_run_start(self, run_id: str) -> None:
        self.log.append(f"{self.name} start {run_id}")

    @hookimpl
    async def lightning_run_end(self, run_id: str, status: str) -> None:
        await asyncio.sleep(0)
        self.log.append(f"{self.name} end {run_id} {status}")


class FailsToStart(Recorder):
    @hookimpl
    def lightning_run_start(self, run_id: str) -> None:
        raise OSError(f"no port for {run_id}")


class StepCounter:
    def __init__(self) -> None:
        self.steps: list[int] = []

    def lightning_step_end(self, step: int) -> None:
        self.steps.append(step)


class FailsAtSteps:
    def lightning_step_end(self, step: int) -> None:
        raise RuntimeError(f"step {step}")


NAMES = {each.__name__: each for each in (LitAgent, Runner, RolloutCounts, Tracer)}
"""What the hooks' annotations name."""


@pytest.mark.parametrize("name", HOOKS)
def test_every_hook_is_documented_and_typed(name: str) -> None:
    documentation = inspect.getdoc(HOOKS[name]) or ""
    types_of = typing.get_type_hints(HOOKS[name], localns=NAMES)
    assert types_of.pop("return") == Awaitable[None] | None
    arguments = inspect.signature(HOOKS[name]).parameters
    assert list(types_of) == list(arguments)
    for argument in arguments:
        assert f"\n    {argument}: " in documentation


@pytest.mark.parametrize("name", HOOKS)
def test_every_hook_stands_in_the_guide_for_authors(name: str) -> None:
    guide = (Path(__file__).resolve().parent.parent / "docs" / "plugins.md").read_text(encoding="utf-8")
    assert f"| `{name}` |" in guide


async def test_plugins_are_told_in_the_given_order_and_awaited() -> None:
    log: list[str] = []
    hooks = Hooks([Recorder("a", log), Recorder("b", log)])
    await hooks.emit("lightning_run_start", run_id="r1", kept=RolloutCounts())
    await hooks.emit("lightning_run_end", run_id="r1", status="succeeded")
    assert log == ["a start r1", "b start r1", "a end r1 succeeded", "b end r1 succeeded"]
    assert hooks.failures == []


async def test_tryfirst_and_trylast_go_around_the_given_order() -> None:
    log: list[str] = []

    def plugin(name: str, mark: Callable[[Any], Any]) -> types.SimpleNamespace:
        return types.SimpleNamespace(lightning_step_end=mark(lambda step: log.append(name)))

    marks: dict[str, Callable[[Any], Any]] = {
        "last": hookimpl(trylast=True),
        "a": hookimpl,
        "b": hookimpl,
        "first": hookimpl(tryfirst=True),
    }
    await Hooks([plugin(name, mark) for name, mark in marks.items()]).emit("lightning_step_end", step=1, metrics={})
    assert log == ["first", "a", "b", "last"]


async def test_a_hook_needs_no_mark_and_takes_only_what_it_asks_for() -> None:
    counter = StepCounter()
    everything: list[dict[str, Any]] = []
    module = types.ModuleType("a_plugin")
    module.lightning_step_end = lambda *, extra="own", metrics, **others: everything.append(  # type: ignore[attr-defined]
        {"extra": extra, "metrics": metrics, **others}
    )
    await Hooks([counter, module]).emit("lightning_step_end", step=3, metrics={"reward": 0.5})
    assert counter.steps == [3]
    assert everything == [{"extra": "own", "metrics": {"reward": 0.5}, "step": 3}]


async def test_a_class_is_made_and_the_same_object_twice_is_one_plugin() -> None:
    counter = StepCounter()
    hooks = Hooks([counter, counter, FailsAtSteps, FailsAtSteps])
    await hooks.emit("lightning_step_end", step=1, metrics={})
    assert counter.steps == [1]
    assert [failure.plugin for failure in hooks.failures] == ["FailsAtSteps", "FailsAtSteps #2"]


async def test_a_hook_that_raises_stops_no_other_and_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    counter = StepCounter()
    hooks = Hooks([FailsAtSteps(), counter])
    with caplog.at_level(logging.ERROR):
        for step in (1, 2, 3):
            await hooks.emit("lightning_step_end", step=step, metrics={})
    assert counter.steps == [1, 2, 3]
    [failure] = hooks.failures
    assert failure == HookFailure("FailsAtSteps", "lightning_step_end", failure.error, count=3)
    assert str(failure.error) == "step 1"
    [record] = caplog.records
    assert record.getMessage() == "lightning.plugin_failed plugin=FailsAtSteps hook=lightning_step_end"
    assert record.exc_info is not None
    assert record.exc_info[1] is failure.error


async def test_a_failed_start_is_raised_and_only_those_who_started_are_told_of_the_end() -> None:
    log: list[str] = []
    ends_only = types.SimpleNamespace(lightning_run_end=lambda run_id: log.append(f"ends only {run_id}"))
    hooks = Hooks([Recorder("a", log), FailsToStart("broken", log), Recorder("never", log), ends_only])
    with pytest.raises(OSError, match="no port for r1"):
        await hooks.emit("lightning_run_start", run_id="r1", kept=RolloutCounts())
    await hooks.emit("lightning_run_end", run_id="r1", status="failed")
    assert log == ["a start r1", "a end r1 failed", "ends only r1"]


async def test_the_end_is_told_once_for_each_start() -> None:
    log: list[str] = []
    hooks = Hooks([Recorder("a", log)])
    await hooks.emit("lightning_run_end", run_id="r1", status="failed")
    assert log == []
    await hooks.emit("lightning_run_start", run_id="r1", kept=RolloutCounts())
    for status in ("succeeded", "failed"):
        await hooks.emit("lightning_run_end", run_id="r1", status=status)
    assert log == ["a start r1", "a end r1 succeeded"]


async def test_cancellation_passes_through() -> None:
    waiting = asyncio.Event()

    async def wait(step: int) -> None:
        waiting.set()
        await asyncio.Event().wait()

    counter = StepCounter()
    hooks = Hooks([types.SimpleNamespace(lightning_step_end=wait), counter])
    emission = asyncio.create_task(hooks.emit("lightning_step_end", step=1, metrics={}))
    await waiting.wait()
    emission.cancel()
    with pytest.raises(asyncio.CancelledError):
        await emission
    assert hooks.failures == []
    assert counter.steps == []


async def test_a_hook_cannot_end_the_process() -> None:
    def leave(run_id: str) -> None:
        raise SystemExit("enough")

    hooks = Hooks(types.SimpleNamespace(lightning_run_start=leave))
    with pytest.raises(LightningError, match="plugin 'SimpleNamespace' tried to end the process"):
        await hooks.emit("lightning_run_start", run_id="r1", kept=RolloutCounts())


class Listener(Hook):
    """Overrides two methods of agentlightning's `Hook`, and has a hook of ours besides."""

    def __init__(self) -> None:
        self.log: list[str] = []

    async def on_trace_start(self, *, agent: Any, runner: Any, tracer: Any, rollout: Any) -> None:
        self.log.append(f"trace start {agent} {runner} {tracer} {rollout}")

    def on_rollout_end(self, *, rollout: Any, spans: Any, **others: Any) -> None:  # type: ignore[override]
        self.log.append(f"rollout end {rollout} {spans} {others['agent']} {others['runner']}")

    def lightning_step_end(self, step: int) -> None:
        self.log.append(f"step {step}")


async def test_a_listener_of_agentlightning_is_told_what_it_overrides() -> None:
    listener = Listener()
    hooks = Hooks(listener)
    assert [hook for hook in HOOKS if hooks.has(hook)] == [
        "lightning_trace_start",
        "lightning_rollout_end",
        "lightning_step_end",
    ]
    known = {"agent": "A", "runner": "R", "rollout": "1", "attempt": "1a"}
    await hooks.emit("lightning_trace_start", **known, tracer="T")
    await hooks.emit("lightning_step_end", step=2, metrics={})
    await hooks.emit("lightning_rollout_end", **known, reward=None, spans=["s"])
    assert listener.log == ["trace start A R T 1", "step 2", "rollout end 1 ['s'] A R"]


def test_a_listener_that_overrides_nothing_is_refused() -> None:
    with pytest.raises(InvalidComponent, match=r"plugin 'Hook' .* overrides no method of Hook: on_rollout_start, "):
        Hooks([Hook()])


def implementation(mark: Callable[[Any], Any] = lambda function: function) -> Any:
    def told(step: int) -> None:
        EVENTS.append(f"told {step}")

    return mark(told)


@pytest.mark.parametrize(
    ("plugin", "problem"),
    [
        (
            types.SimpleNamespace(lightning_rolout_end=implementation()),
            r"plugin 'SimpleNamespace' implements 'lightning_rolout_end', and there is no such hook; "
            r"hooks: lightning_run_start, .*\. Did you mean 'lightning_rollout_end'\?",
        ),
        (
            types.SimpleNamespace(lightning_run_end=lambda run_id, state: None),
            r"lightning_run_end has no argument 'state'; it has: run_id, status\. Did you mean 'status'\?",
        ),
        (
            types.SimpleNamespace(lightning_step_end=implementation(hookimpl(wrapper=True))),
            r"lightning_step_end is a wrapper; plugins are called one by one, with nothing to wrap",
        ),
        (object(), r"plugin 'object' \(<object.*>\) has no hook; hooks: lightning_run_start, "),
        ("endpoint:LocalEndpoint", r"plugin 'str' \('endpoint:LocalEndpoint'\) has no hook"),
        (None, r"plugin 'NoneType' \(None\) has no hook"),
    ],
)
def test_a_plugin_that_would_never_be_told_is_refused(plugin: object, problem: str) -> None:
    with pytest.raises(InvalidComponent, match=problem):
        Hooks([plugin])


def installed(folder: Path, entry_points: str) -> Registry:
    """A registry of one distribution with plugins."""
    information = folder / "somebodys-0.1.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: somebodys\nVersion: 0.1\n")
    (information / "entry_points.txt").write_text(f"[lightning_core]\n{entry_points}\n")
    [distribution] = importlib.metadata.distributions(path=[str(folder)])
    return Registry(distribution.entry_points)


def installed_plugin(step: int) -> None:
    EVENTS.append(f"installed {step}")


INSTALLED = types.SimpleNamespace(lightning_step_end=installed_plugin)


async def test_installed_plugins_are_told_after_the_given_ones(tmp_path: Path) -> None:
    registry = installed(tmp_path, f"mine = {__name__}:INSTALLED")
    given = types.SimpleNamespace(lightning_step_end=lambda step: EVENTS.append(f"given {step}"))
    await Hooks([given], load_entry_points=True, registry=registry).emit("lightning_step_end", step=1, metrics={})
    assert EVENTS == ["given 1", "installed 1"]
    await Hooks([given], registry=registry).emit("lightning_step_end", step=2, metrics={})
    assert EVENTS[2:] == ["given 2"]


async def test_an_installed_plugin_that_cannot_be_loaded_is_reported_and_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    registry = installed(
        tmp_path, f"absent = not_there:plugin\nhookless = {__name__}:EVENTS\nmine = {__name__}:INSTALLED"
    )
    hooks = Hooks(load_entry_points=True, registry=registry)
    assert [(each.plugin, each.hook, type(each.error)) for each in hooks.failures] == [
        ("absent", None, BrokenPlugin),
        ("hookless", None, InvalidComponent),
    ]
    assert str(hooks.failures[0].error).startswith("hook plugin 'absent' of somebodys 0.1 (not_there:plugin) cannot")
    assert [record.getMessage() for record in caplog.records] == [
        "lightning.plugin_failed plugin=absent hook=None",
        "lightning.plugin_failed plugin=hookless hook=None",
    ]
    await hooks.emit("lightning_step_end", step=1, metrics={})
    assert EVENTS == ["installed 1"]


class Ending:
    """Records that it was told of the end."""

    def __init__(self, end: Callable[[], Awaitable[None]] | None = None) -> None:
        self.ended: list[str] = []
        self._end = end

    async def lightning_run_start(self, run_id: str) -> None:
        pass

    async def lightning_run_end(self, run_id: str, status: str) -> None:
        if self._end is not None:
            await self._end()
        self.ended.append(status)


async def test_every_plugin_is_told_of_the_end_of_a_cancelled_run_whatever_the_others_do() -> None:
    async def await_something_cancelled() -> None:
        task = asyncio.create_task(asyncio.sleep(60))
        task.cancel()
        await task

    broken, last = Ending(await_something_cancelled), Ending()
    hooks = Hooks([broken, last])

    async def run() -> None:
        await hooks.emit("lightning_run_start", run_id="r", kept=RolloutCounts())
        try:
            await asyncio.sleep(60)
        finally:
            await hooks.end_run("r", "interrupted", timeout_seconds=0)

    task = asyncio.create_task(run())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert last.ended == ["interrupted"]
    assert [(failure.plugin, failure.hook) for failure in hooks.failures] == [("Ending", "lightning_run_end")]


async def test_a_plugin_that_takes_too_long_to_end_a_run_is_left_behind() -> None:
    hanging, last = Ending(asyncio.Event().wait), Ending()  # type: ignore[arg-type]  # returns True, never
    hooks = Hooks([hanging, last])
    await hooks.emit("lightning_run_start", run_id="r", kept=RolloutCounts())
    await asyncio.wait_for(hooks.end_run("r", "succeeded", timeout_seconds=0), timeout=20)
    assert last.ended == ["succeeded"]
    assert isinstance(hooks.failures[0].error, TimeoutError)
