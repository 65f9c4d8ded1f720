"""Plugins with hooks: finding them, checking them, and telling each what happens."""

import importlib.metadata
import inspect
import itertools
import logging
import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

import pluggy

from lightning_core import hookspecs
from lightning_core.errors import InvalidComponent
from lightning_core.hookspecs import hookimpl
from lightning_core.registry import did_you_mean

__all__ = ["HookFailure", "Hooks", "hookimpl"]

logger = logging.getLogger(__name__)

_PREFIX = "lightning_"
_HOOKS = {
    name: tuple(inspect.signature(specification).parameters)
    for name, specification in vars(hookspecs).items()
    if name.startswith(_PREFIX)
}
"""Name of a hook -> its arguments."""


@dataclass(frozen=True, slots=True)
class HookFailure:
    """A plugin did not do its part; what it was told about went on without it."""

    plugin: str
    """The plugin's name: its entry point, or its class or module."""
    hook: str | None
    """The hook that raised; None when the plugin could not be loaded at all."""
    error: Exception
    """What was raised the first time."""
    count: int = 1
    """How often it was raised."""


class Hooks:
    """Tells plugins what happens.

    Every implementation is called by itself, so that one that raises stops neither the others nor what they are told
    about. Its first failure is logged with the traceback, later ones are counted, and `failures` lists them. Only
    what `lightning_run_start` raises is raised to the caller.

    Plugins are told in the order in which they are given, then those of installed distributions by name. An
    implementation marked `tryfirst` or `trylast` comes before or after all others.

    Args:
        plugins: Objects, classes to be called without arguments, or modules, that have methods or functions named as
            the hooks in `lightning_core.hookspecs`. The same object twice is one plugin.
        load_entry_points: Whether the plugins of installed distributions (entry-point group `lightning_core`) are
            told too. One that cannot be loaded is logged and listed in `failures`.

    Raises:
        InvalidComponent: One of `plugins` has no hook at all, or one that does not exist, or one that asks for an
            argument that the hook does not have.
    """

    def __init__(self, plugins: Sequence[object] = (), *, load_entry_points: bool = False) -> None:
        self._manager = _Manager(hookspecs.PROJECT)
        self._manager.add_hookspecs(hookspecs)
        self._failures: dict[tuple[str, str | None], HookFailure] = {}
        self._started: dict[str, set[str]] = {}
        for plugin in plugins:
            self._add(plugin, _name_of(plugin))
        if load_entry_points:
            self._add_installed()

    @property
    def failures(self) -> list[HookFailure]:
        """What went wrong so far: one entry for each plugin and hook, in the order of their first failures."""
        return list(self._failures.values())

    async def emit(self, hook: str, **arguments: Any) -> None:
        """Tell every plugin that implements `hook`, one after the other, and return when all are done.

        There is no time limit. Cancellation reaches the implementation that is running; those after it are not
        called.

        Args:
            hook: The name of a hook.
            arguments: Exactly the arguments of that hook.

        Raises:
            TypeError: There is no such hook, or it has other arguments.
            Exception: What an implementation of `lightning_run_start` raised; those after it were not called.
        """
        if hook not in _HOOKS:
            raise TypeError(f"there is no hook {hook!r}; hooks: {', '.join(_HOOKS)}{did_you_mean(hook, _HOOKS)}")
        if arguments.keys() != set(_HOOKS[hook]):
            raise TypeError(f"{hook} has the arguments {', '.join(_HOOKS[hook])}; got {', '.join(arguments)}")
        implementations = self._implementations(hook)
        if hook == "lightning_run_start":
            await self._start(arguments["run_id"], implementations, arguments)
            return
        if hook == "lightning_run_end":
            implementations = self._to_end(arguments["run_id"], implementations)
        for implementation in implementations:
            try:
                await _call(implementation, arguments)
            except Exception as exc:
                self._record(implementation.plugin_name, hook, exc)

    async def _start(self, run_id: str, implementations: list[pluggy.HookImpl], arguments: Mapping[str, Any]) -> None:
        started: set[str] = set()
        self._started[run_id] = started
        for implementation in implementations:
            await _call(implementation, arguments)
            started.add(implementation.plugin_name)

    def _to_end(self, run_id: str, implementations: list[pluggy.HookImpl]) -> list[pluggy.HookImpl]:
        """Select those whose plugin has nothing to start, or did; none when the run never started or has ended."""
        started = self._started.pop(run_id, None)
        if started is None:
            return []
        not_started = {each.plugin_name for each in self._implementations("lightning_run_start")} - started
        return [each for each in implementations if each.plugin_name not in not_started]

    def _implementations(self, hook: str) -> list[pluggy.HookImpl]:
        caller: pluggy.HookCaller = getattr(self._manager.hook, hook)
        return sorted(caller.get_hookimpls(), key=lambda each: each.trylast - each.tryfirst)

    def _record(self, plugin: str, hook: str | None, error: Exception) -> None:
        known = self._failures.get((plugin, hook))
        if known is not None:
            self._failures[plugin, hook] = replace(known, count=known.count + 1)
            return
        self._failures[plugin, hook] = HookFailure(plugin, hook, error)
        logger.error("lightning.plugin_failed plugin=%s hook=%s", plugin, hook, exc_info=error)

    def _add_installed(self) -> None:
        installed = importlib.metadata.entry_points(group=hookspecs.PROJECT)
        for entry_point in sorted(installed, key=lambda each: each.name):
            try:
                self._add(entry_point.load(), entry_point.name)
            except Exception as exc:
                self._record(entry_point.name, None, exc)

    def _add(self, plugin: object, name: str) -> None:
        if isinstance(plugin, type):
            plugin = plugin()
        if self._manager.is_registered(plugin):
            return
        _check(plugin, name)
        numbered = itertools.chain([name], (f"{name} #{number}" for number in itertools.count(2)))
        self._manager.register(plugin, next(itertools.filterfalse(self._manager.has_plugin, numbered)))


class _Manager(pluggy.PluginManager):
    """Takes every function whose name begins as a hook's does, so that a forgotten mark does not silence a plugin."""

    def parse_hookimpl_opts(self, plugin: object, name: str) -> pluggy.HookimplOpts | None:
        marked = super().parse_hookimpl_opts(plugin, name)
        if marked is not None or not name.startswith(_PREFIX):
            return marked
        if not inspect.isroutine(inspect.getattr_static(plugin, name, None)):
            return None
        return pluggy.HookimplOpts(
            wrapper=False, hookwrapper=False, optionalhook=False, tryfirst=False, trylast=False, specname=None
        )


async def _call(implementation: pluggy.HookImpl, arguments: Mapping[str, Any]) -> None:
    parameters = inspect.signature(implementation.function).parameters
    takes_all = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values())
    wanted = arguments if takes_all else {name: arguments[name] for name in arguments if name in parameters}
    result = implementation.function(**wanted)
    if inspect.isawaitable(result):
        await result


def _check(plugin: object, name: str) -> None:
    """Refuse a plugin with something in it that would never be called, or could not be."""
    trial = _Manager(hookspecs.PROJECT)  # without specifications, so that it takes whatever there is
    trial.register(plugin, name)
    callers = trial.get_hookcallers(plugin)
    if not callers:
        raise InvalidComponent(f"plugin {name!r} ({reprlib.repr(plugin)}) has no hook; hooks: {', '.join(_HOOKS)}")
    for caller in callers:
        for implementation in caller.get_hookimpls():
            _check_implementation(implementation, caller.name)


def _check_implementation(implementation: pluggy.HookImpl, hook: str) -> None:
    plugin = f"plugin {implementation.plugin_name!r}"
    if implementation.wrapper or implementation.hookwrapper:
        raise InvalidComponent(f"{plugin}: {hook} is a wrapper; plugins are called one by one, with nothing to wrap")
    if hook not in _HOOKS:
        if implementation.optionalhook:
            return
        raise InvalidComponent(
            f"{plugin} implements {hook!r}, which is no hook; hooks: {', '.join(_HOOKS)}{did_you_mean(hook, _HOOKS)}"
        )
    for parameter in inspect.signature(implementation.function).parameters.values():
        variable = parameter.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        if not variable and parameter.default is inspect.Parameter.empty and parameter.name not in _HOOKS[hook]:
            raise InvalidComponent(
                f"{plugin}: {hook} has no argument {parameter.name!r}; it has: {', '.join(_HOOKS[hook])}"
                f"{did_you_mean(parameter.name, _HOOKS[hook])}"
            )


def _name_of(plugin: object) -> str:
    return plugin.__name__ if isinstance(plugin, type | ModuleType) else type(plugin).__name__
