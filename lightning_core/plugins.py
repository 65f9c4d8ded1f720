"""Plugins with hooks: finding them, checking them, and telling each what happens."""

import asyncio
import copy
import inspect
import itertools
import logging
import reprlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any, NamedTuple

import pluggy

from lightning_core import hookspecs
from lightning_core.errors import InvalidComponent, LightningError
from lightning_core.hookspecs import hookimpl
from lightning_core.registry import Registry, default_registry, did_you_mean
from lightning_core.types.hook import Hook

__all__ = ["HookFailure", "Hooks", "hookimpl"]

logger = logging.getLogger(__name__)

_PREFIX = "lightning_"
_HOOKS = {
    name: tuple(inspect.signature(specification).parameters)
    for name, specification in vars(hookspecs).items()
    if name.startswith(_PREFIX)
}
"""Name of a hook -> its arguments."""

_METHODS_OF_HOOK = {name: _PREFIX + name.removeprefix("on_") for name in vars(Hook) if name.startswith("on_")}
"""Name of a method of agentlightning's `Hook` -> the hook that it implements."""


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
        plugins: One plugin or a sequence of them; None for none. A plugin is an object, a class to be called without
            arguments, or a module, with methods or functions named as the hooks in `lightning_core.hookspecs`; or it
            is a `Hook`, as in agentlightning 0.3. The same object twice is one plugin.
        load_entry_points: Whether the plugins of installed distributions (entry-point group `lightning_core`) are
            told too. One that cannot be loaded is logged and listed in `failures`.
        registry: Where these are looked up; None for what is installed.

    Raises:
        InvalidComponent: One of `plugins` has no hook at all, or one that does not exist, or one that asks for an
            argument that the hook does not have.
    """

    def __init__(
        self, plugins: object = (), *, load_entry_points: bool = False, registry: Registry | None = None
    ) -> None:
        self._failures: dict[tuple[str, str | None], HookFailure] = {}
        self._started: dict[str, set[str]] = {}
        manager = _Manager(hookspecs.PROJECT)
        for plugin in in_sequence(plugins):
            name = plugin.__name__ if isinstance(plugin, type | ModuleType) else type(plugin).__name__
            _add(manager, plugin, name)
        if load_entry_points:
            registry = default_registry() if registry is None else registry
            for component in registry.components("hooks"):
                try:
                    _add(manager, registry.load_component(component), component.name)
                except Exception as exc:
                    self._record(component.name, None, exc)
        self._take({hook: _listeners(getattr(manager.hook, hook, None)) for hook in _HOOKS})

    def _take(self, listeners: "Mapping[str, Sequence[_Listener]]") -> None:
        self._listeners = listeners
        self.listened = frozenset(hook for hook, found in listeners.items() if found)
        """The hooks that any plugin implements. Another one need not be prepared."""

    @classmethod
    def of(cls, hooks: object) -> "Hooks":
        """Return `hooks` itself where it is a `Hooks`, else the hooks of the plugin or plugins that it is."""
        return hooks if isinstance(hooks, Hooks) else cls(hooks)

    @property
    def failures(self) -> list[HookFailure]:
        """What went wrong so far: one entry for each plugin and hook, in the order of their first failures."""
        return list(self._failures.values())

    def __iter__(self) -> Iterator[object]:
        """Iterate over the plugins that are told anything, each once."""
        owners = {id(each.owner): each.owner for listeners in self._listeners.values() for each in listeners}
        return iter(owners.values())

    def has(self, hook: str) -> bool:
        """Whether any plugin that has not heard enough implements a hook. Else it need not be prepared."""
        return any(not getattr(each.owner, "has_heard_enough", False) for each in self._listeners[hook])

    def also(self, *plugins: object) -> "Hooks":
        """Return these with more plugins, called last. What fails among them is counted and listed here, too."""
        more = Hooks(plugins)
        both = copy.copy(self)
        both._take({hook: (*each, *more._listeners[hook]) for hook, each in self._listeners.items()})
        return both

    def only(self, wanted: Callable[[object], bool]) -> "Hooks":
        """Return those of some plugins. What fails among them is counted and listed here, too.

        Args:
            wanted: Whether a plugin is one of them.
        """
        some = copy.copy(self)
        some._take({hook: [each for each in found if wanted(each.owner)] for hook, found in self._listeners.items()})
        return some

    async def emit(self, hook: str, **arguments: Any) -> None:
        """Tell every plugin that implements `hook`, one after the other, and return when all are done.

        There is no time limit. Cancellation reaches the implementation that is running; those after it are not
        called. The end of a run has its own method, `end_run`.

        Args:
            hook: The name of a hook.
            arguments: Exactly the arguments of that hook.

        Raises:
            Exception: What an implementation of `lightning_run_start` raised; those after it were not called.
        """
        listeners = self._listeners[hook]
        if hook == "lightning_run_start":
            await self._start(arguments["run_id"], listeners, arguments)
            return
        if hook == "lightning_run_end":
            await self.end_run(**arguments)
            return
        for listener in listeners:
            try:
                await listener.tell(arguments)
            except Exception as exc:
                self._record(listener.plugin, hook, exc)

    async def end_run(self, run_id: str, status: str, *, timeout_seconds: float = 30.0) -> None:
        """Tell every plugin that a run ended: each of them, whatever the others do, and also when this is cancelled.

        Args:
            run_id: The run; for one that never started, or has ended, no plugin is called.
            status: How it ended.
            timeout_seconds: How long all of them together may take. One that takes longer is cancelled, logged and
                listed in `failures`; those after it still get a moment.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_seconds
        cancelled: asyncio.CancelledError | None = None
        for listener in self._to_end(run_id, self._listeners["lightning_run_end"]):
            # A task of its own: a cancellation of the run that is over does not reach into it.
            task = loop.create_task(listener.tell({"run_id": run_id, "status": status}), name=f"end {listener.plugin}")
            try:
                await asyncio.wait((task,), timeout=max(_MOMENT_SECONDS, deadline - loop.time()))
            except asyncio.CancelledError as exc:
                cancelled, deadline = exc, loop.time()
                await asyncio.wait((task,), timeout=_MOMENT_SECONDS)
            error = _error_of(task)
            if error is not None:
                self._record(listener.plugin, "lightning_run_end", error)
        if cancelled is not None:
            raise cancelled

    async def _start(self, run_id: str, listeners: "Sequence[_Listener]", arguments: Mapping[str, Any]) -> None:
        started: set[str] = set()
        self._started[run_id] = started
        for listener in listeners:
            await listener.tell(arguments)
            started.add(listener.plugin)

    def _to_end(self, run_id: str, listeners: "Sequence[_Listener]") -> "Sequence[_Listener]":
        """Select those whose plugin has nothing to start, or did; none when the run never started or has ended."""
        started = self._started.pop(run_id, None)
        if started is None:
            return ()
        not_started = {each.plugin for each in self._listeners["lightning_run_start"]} - started
        return [each for each in listeners if each.plugin not in not_started]

    def _record(self, plugin: str, hook: str | None, error: Exception) -> None:
        known = self._failures.get((plugin, hook))
        if known is not None:
            self._failures[plugin, hook] = replace(known, count=known.count + 1)
            return
        self._failures[plugin, hook] = HookFailure(plugin, hook, error)
        logger.error("lightning.plugin_failed plugin=%s hook=%s", plugin, hook, exc_info=error)


_MOMENT_SECONDS = 0.3
"""What a plugin gets at the least to end a run, in seconds."""


def _error_of(task: "asyncio.Task[None]") -> Exception | None:
    """Return what a task failed with; one that has not ended is cancelled, and that is its error."""
    if not task.done():
        task.cancel()
        return TimeoutError("it took too long to end, and was cancelled")
    error = None if task.cancelled() else task.exception()
    return error if isinstance(error, Exception) else None


class _Listener(NamedTuple):
    """One plugin's implementation of one hook."""

    plugin: str
    owner: object
    function: Callable[..., Any]
    takes: frozenset[str]

    async def tell(self, arguments: Mapping[str, Any]) -> None:
        """Call it with what it takes. Whatever it does to end its caller is an error like any other."""
        try:
            result = self.function(**{name: arguments[name] for name in self.takes})
            if inspect.isawaitable(result):
                await result
        except asyncio.CancelledError as exc:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            raise LightningError(f"plugin {self.plugin!r} waited for something that was cancelled") from exc
        except SystemExit as exc:
            raise LightningError(f"plugin {self.plugin!r} tried to end the process") from exc


class _Manager(pluggy.PluginManager):
    """Takes every function whose name begins as a hook's does, so that a forgotten mark does not silence a plugin."""

    def parse_hookimpl_opts(self, plugin: object, name: str) -> pluggy.HookimplOpts | None:
        implementation = inspect.getattr_static(plugin, name, None)
        if isinstance(implementation, property):  # pluggy<1.7 reads it, and it may raise
            return None
        marked = super().parse_hookimpl_opts(plugin, name)
        if marked is not None:
            return marked
        if isinstance(plugin, Hook) and name in _METHODS_OF_HOOK and implementation is not vars(Hook)[name]:
            specname = _METHODS_OF_HOOK[name]
        elif name.startswith(_PREFIX) and inspect.isroutine(implementation):
            specname = None
        else:
            return None
        return pluggy.HookimplOpts(
            wrapper=False, hookwrapper=False, optionalhook=False, tryfirst=False, trylast=False, specname=specname
        )


def in_sequence(plugins: object) -> Sequence[object]:
    """Return plugins as a sequence: one alone is a sequence of one, None is none."""
    if plugins is None:
        return ()
    return plugins if isinstance(plugins, Sequence) and not isinstance(plugins, str) else (plugins,)


def _add(manager: _Manager, plugin: object, name: str) -> None:
    if isinstance(plugin, type):
        plugin = plugin()
    if manager.is_registered(plugin):
        return
    numbered = itertools.chain([name], (f"{name} #{number}" for number in itertools.count(2)))
    registered = manager.register(plugin, next(itertools.filterfalse(manager.has_plugin, numbered)))
    try:
        _check(manager, plugin, name)
    except BaseException:
        if registered is not None:
            manager.unregister(name=registered)
        raise


def _check(manager: _Manager, plugin: object, name: str) -> None:
    """Refuse a plugin with something in it that would never be called, or could not be."""
    found = [(caller.name, each) for caller in manager.get_hookcallers(plugin) or () for each in caller.get_hookimpls()]
    if not found:
        is_listener = isinstance(plugin, Hook)
        none = f"overrides no method of Hook: {', '.join(_METHODS_OF_HOOK)}" if is_listener else "has no hook"
        raise InvalidComponent(f"plugin {name!r} ({reprlib.repr(plugin)}) {none}; hooks: {', '.join(_HOOKS)}")
    for hook, implementation in found:
        if implementation.wrapper or implementation.hookwrapper:
            raise InvalidComponent(
                f"plugin {name!r}: {hook} is a wrapper; plugins are called one by one, with nothing to wrap"
            )
        if hook not in _HOOKS:
            raise InvalidComponent(
                f"plugin {name!r} implements {hook!r}, and there is no such hook; hooks: {', '.join(_HOOKS)}"
                f"{did_you_mean(hook, _HOOKS)}"
            )
        for parameter in inspect.signature(implementation.function).parameters.values():
            variable = parameter.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
            if not variable and parameter.default is inspect.Parameter.empty and parameter.name not in _HOOKS[hook]:
                raise InvalidComponent(
                    f"plugin {name!r}: {hook} has no argument {parameter.name!r}; it has: {', '.join(_HOOKS[hook])}"
                    f"{did_you_mean(parameter.name, _HOOKS[hook])}"
                )


def _listeners(caller: pluggy.HookCaller | None) -> Sequence[_Listener]:
    """Return what implements a hook, in the order in which it is called."""
    if caller is None:
        return ()
    listeners = []
    for each in sorted(caller.get_hookimpls(), key=lambda each: each.trylast - each.tryfirst):
        parameters = inspect.signature(each.function).parameters
        takes_all = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values())
        takes = frozenset(_HOOKS[caller.name] if takes_all else parameters.keys() & _HOOKS[caller.name])
        listeners.append(_Listener(each.plugin_name, each.plugin, each.function, takes))
    return listeners
