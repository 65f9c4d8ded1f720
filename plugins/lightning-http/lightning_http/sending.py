"""From this process to another one: by import path where there is one, else pickled."""

import io
import pickle
import sys
import types
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from lightning_core.errors import ExecutionError, UnknownComponent
from lightning_core.plugins import Hooks
from lightning_core.registry import load_object
from lightning_core.trainer.runners import RunnerFactory, RunnersSide
from lightning_core.types.hook import Hook

_ADVICE = "define it at the top level of a module that can be imported, and use that one"


def packed(what: str, value: object) -> bytes:
    """Return a value as bytes from which another process makes the same one.

    Classes, functions and what decorators have made of them are named, and imported there. Other objects are pickled,
    or, when they cannot be, named as well, where they stand at the top level of a module. Weak references lead
    nowhere on the other side.

    Args:
        what: What it is called in a message.
        value: The value.

    Raises:
        ExecutionError: When there is no way; says why, and how to make one.
    """
    try:
        return _packed(value)
    except ExecutionError:  # of a part, which is named
        raise
    except Exception as exc:
        path = next(_paths(value), None)
        if path is None:
            raise ExecutionError(f"{what} cannot be sent to another process: {_reason(exc)}; {_ADVICE}") from exc
    return _packed(_ByPath(path))


def unpacked(data: bytes) -> Any:
    """Return what was packed.

    Raises:
        ExecutionError: When this process has nothing of its name.
        Exception: What importing it, or making it, has raised.
    """
    try:
        value = pickle.loads(data)
        return load_object(value.path) if isinstance(value, _ByPath) else value
    except (AttributeError, UnknownComponent) as exc:
        raise ExecutionError(
            f"{_reason(exc)}. What stands below `if __name__ == '__main__':` is not there in another process; {_ADVICE}"
        ) from exc


class _ByPath:
    """Stands for an object that is imported."""

    def __init__(self, path: str) -> None:
        self.path = path


class _Unreachable(Exception):
    """Something is defined where no other process finds it."""


class _Pickler(pickle.Pickler):
    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, RunnersSide):
            return _arrived, _parts(obj)
        if isinstance(obj, weakref.ReferenceType):
            return _nothing, ()
        if isinstance(obj, types.FunctionType | type):
            if obj.__module__ == "__main__" and not _main_can_be_imported():
                raise _Unreachable(
                    f"{obj.__qualname__!r} is defined in a notebook, or in a program that is not a file, "
                    "which another process cannot import"
                )
        elif "__qualname__" in getattr(obj, "__dict__", ()):  # a wrapper that a decorator made of a function
            path = f"{obj.__module__}:{obj.__qualname__}"
            if path in _paths(obj):
                return load_object, (path,)
        return NotImplemented


def _packed(value: object) -> bytes:
    buffer = io.BytesIO()
    _Pickler(buffer, protocol=pickle.HIGHEST_PROTOCOL).dump(value)
    return buffer.getvalue()


def _paths(value: object) -> Iterator[str]:
    """Find the module-level names of an object."""
    for name, module in list(sys.modules.items()):
        names = getattr(module, "__dict__", None)
        if names is None or name == "__mp_main__" or (name == "__main__" and not _main_can_be_imported()):
            continue
        for attribute, member in list(names.items()):
            if member is value and attribute.isidentifier() and all(map(str.isidentifier, name.split("."))):
                yield f"{name}:{attribute}"


def _main_can_be_imported() -> bool:
    """Whether another process can run this one's program again, without its `if __name__ == "__main__"` part."""
    main = sys.modules["__main__"]
    file = getattr(main, "__file__", None)
    return getattr(main, "__spec__", None) is not None or (file is not None and Path(file).is_file())


def _nothing() -> None:
    return None


def _reason(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


HOOKS_OF_RUNNERS = (
    "lightning_rollout_start",
    "lightning_trace_start",
    "lightning_trace_end",
    "lightning_rollout_end",
)


def _parts(side: RunnersSide) -> tuple[Sequence[bytes], Sequence[bytes], int | None]:
    """Return what the runners' side is made of anew in another process; each part is named where it is refused."""
    factory = side.make_runner
    sent = (
        packed(f"agent {_name_of(side.agent)}", side.agent),
        packed("the runner", factory.spec),
        packed(f"tracer {type(factory.tracer).__name__}", factory.tracer),
        packed("grader " + ("" if factory.reward is None else factory.reward.name), factory.reward),
    )
    plugins = [
        packed(f"plugin {_name_of(plugin)}", plugin)
        for plugin in side.plugins
        if _has_hooks_of_runners(plugin) and not stays_with_algorithm(plugin)
    ]
    return sent, plugins, factory.max_rollouts


def _arrived(sent: Sequence[bytes], plugins: Sequence[bytes], max_rollouts: int | None) -> RunnersSide:
    agent, spec, tracer, reward = map(unpacked, sent)
    factory = RunnerFactory(spec, tracer, max_rollouts, reward)
    instances = [unpacked(plugin) for plugin in plugins]
    hooks = Hooks(instances, load_entry_points=True).only(lambda plugin: not stays_with_algorithm(plugin))
    return RunnersSide(agent, factory, instances, hooks)


def _name_of(value: object) -> str:
    return str(getattr(value, "__qualname__", type(value).__qualname__))


def _has_hooks_of_runners(plugin: object) -> bool:
    is_listener = isinstance(plugin, Hook) or (isinstance(plugin, type) and issubclass(plugin, Hook))
    return is_listener or any(hasattr(plugin, name) for name in HOOKS_OF_RUNNERS)


def stays_with_algorithm(plugin: object) -> bool:
    """Whether a plugin is told in the algorithm's process of rollouts that run elsewhere, and is not sent there."""
    return bool(getattr(plugin, "stays_with_algorithm", False))
