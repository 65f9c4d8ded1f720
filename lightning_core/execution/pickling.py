"""From this process to another one: by import path where there is one, else pickled."""

import ast
import io
import pickle
import sys
import types
import weakref
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from lightning_core.errors import ExecutionError
from lightning_core.registry import load_object

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
        Exception: What importing it, or making it, has raised.
    """
    value = pickle.loads(data)
    return load_object(value.path) if isinstance(value, _ByPath) else value


class _ByPath:
    """Stands for an object that is imported."""

    def __init__(self, path: str) -> None:
        self.path = path


class _Unreachable(Exception):
    """Something is defined where no other process finds it."""


class _Pickler(pickle.Pickler):
    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, weakref.ReferenceType):
            return _nothing, ()
        if isinstance(obj, types.FunctionType | type):
            if obj.__module__ == "__main__" and not _main_can_be_imported():
                raise _Unreachable(
                    f"{obj.__qualname__!r} is defined in a notebook, or in a program that is no file, "
                    "which another process cannot import"
                )
            if obj.__module__ == "__main__" and obj.__qualname__.partition(".")[0] in _guarded_names():
                raise _Unreachable(
                    f"{obj.__qualname__!r} is defined below `if __name__ == '__main__':`, which another process "
                    "does not run"
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
        unreachable = _guarded_names() if name == "__main__" else frozenset()
        for attribute, found in list(names.items()):
            if (
                found is value
                and attribute not in unreachable
                and attribute.isidentifier()
                and all(map(str.isidentifier, name.split(".")))
            ):
                yield f"{name}:{attribute}"


def _main_can_be_imported() -> bool:
    """Whether another process can run this one's program again, without its `if __name__ == "__main__"` part."""
    main = sys.modules["__main__"]
    file = getattr(main, "__file__", None)
    return getattr(main, "__spec__", None) is not None or (file is not None and Path(file).is_file())


def _guarded_names() -> frozenset[str]:
    """Return what this program defines only where it is run, and not imported."""
    file = getattr(sys.modules["__main__"], "__file__", None)
    return frozenset() if file is None else _guarded_in(file)


@cache
def _guarded_in(file: str) -> frozenset[str]:
    try:
        body = ast.parse(Path(file).read_bytes()).body
    except (OSError, SyntaxError, ValueError):  # no source, as in a frozen program: then the other process will say
        return frozenset()
    if any(isinstance(each, ast.ImportFrom) and each.names[0].name == "*" for each in body):
        return frozenset()  # who knows which names that are
    guards = [each for each in body if isinstance(each, ast.If) and _is_guard(each.test)]
    others = [each for each in body if each not in guards]
    return frozenset(_defined(part for each in guards for part in each.body)) - frozenset(
        _defined([*others, *(part for each in guards for part in each.orelse)])
    )


def _is_guard(test: ast.expr) -> bool:
    return ast.unparse(test) in ("__name__ == '__main__'", "'__main__' == __name__")


def _defined(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Find the names that statements give something to, at the level where they stand."""
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield from (each.asname or each.name.partition(".")[0] for each in node.names)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif not isinstance(node, ast.Lambda):
            yield from _defined(ast.iter_child_nodes(node))


def _nothing() -> None:
    return None


def _reason(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
