"""From a path to the object that it names, and from a wrong name to the one that was meant."""

import difflib
import importlib
from collections.abc import Iterable
from pathlib import PurePath
from typing import Any

from lightning_core.errors import BrokenPlugin, InvalidComponent, UnknownComponent


def load_object(path: str) -> Any:
    """Import what `"package.module:attribute"` names; the attribute may be dotted.

    Raises:
        InvalidComponent: `path` is not of that form.
        UnknownComponent: There is no such module, or the module has no such attribute.
        BrokenPlugin: The module is there, and importing it raised, or tried to end the process; the cause is chained.
    """
    module_name, _, attribute = path.partition(":")
    if module_name.endswith(".py"):
        dotted = ".".join(part for part in PurePath(module_name).with_suffix("").parts if part.isidentifier())
        raise InvalidComponent(f"{path!r} names a file; name its module: {f'{dotted}:{attribute}'!r}")
    if not all(part.isidentifier() for part in [*module_name.split("."), *attribute.split(".")]):
        raise InvalidComponent(f"{path!r} does not name an object; the form is 'package.module:attribute'")
    found = _import_module(module_name, path)
    owner = f"module {module_name!r}"
    for part in attribute.split("."):
        try:
            found = getattr(found, part)
        except AttributeError as exc:
            names = [name for name in dir(found) if not name.startswith("_")]
            raise UnknownComponent(f"{owner} has no {part!r}, which {path!r} names{did_you_mean(part, names)}") from exc
        except Exception as exc:  # a module may import lazily, in its __getattr__
            raise BrokenPlugin(f"{part!r} of {owner} cannot be imported: {type(exc).__name__}: {exc}") from exc
        owner = repr(part)
    return found


def nearest(name: object, names: Iterable[str]) -> str | None:
    """Return the one of `names` that `name` was probably meant to be; None when none is like it."""
    matches = difflib.get_close_matches(str(name), list(names), n=1)
    return matches[0] if matches else None


def did_you_mean(name: object, names: Iterable[str]) -> str:
    """Return the end of an error message, `. Did you mean 'x'?`; empty when nothing is near."""
    guess = nearest(name, names)
    return "" if guess is None else f". Did you mean {guess!r}?"


def _import_module(module_name: str, path: str) -> Any:
    try:
        return importlib.import_module(module_name)
    except (Exception, SystemExit) as exc:
        if isinstance(exc, ModuleNotFoundError) and f"{module_name}.".startswith(f"{exc.name}."):
            raise UnknownComponent(
                f"no module {exc.name!r}, which {path!r} names; is it installed, or its folder on sys.path?"
            ) from exc
        raise BrokenPlugin(f"module {module_name!r} cannot be imported: {type(exc).__name__}: {exc}") from exc
