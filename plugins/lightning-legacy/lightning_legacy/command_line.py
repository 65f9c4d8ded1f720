"""What agentlightning 0.3 gave scripts: classes on the command line (`--trainer.n-runners 8`), and variables."""

import argparse
import inspect
import os
from collections.abc import Callable
from enum import Enum
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

import yaml
from pydantic import TypeAdapter

from lightning_core.registry.options import deprecated_options

T = TypeVar("T")
ValueT = TypeVar("ValueT")
CliConfigurable = Any

_BOOL = TypeAdapter(bool)


def lightning_cli(*classes: type) -> Any:
    """Make an object of each class, with the options `--class.parameter` of the command line.

    Parameters that are annotated as numbers, booleans, or lists of them, are read as such, and others as text; `none`
    is None where that is allowed. Underscores may be hyphens.

    Returns:
        The object; of several classes a tuple of them.

    Raises:
        SystemExit: For an unknown option, for one that is missing, or for a value that cannot be read.
    """
    parser = argparse.ArgumentParser(argument_default=argparse.SUPPRESS)
    for cls in classes:
        hints = _hints(cls)
        for parameter in inspect.signature(cls).parameters.values():
            if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                _add_option(parser, cls, parameter.name, parameter.default, hints.get(parameter.name))
        for name in sorted(deprecated_options(cls)):
            parser.add_argument(
                *_flags(cls, name), dest=f"{cls.__name__}.{name}", type=yaml.safe_load, help="deprecated"
            )
    given = vars(parser.parse_args())
    made = tuple(
        cls(**{dest.partition(".")[2]: given[dest] for dest in given if dest.partition(".")[0] == cls.__name__})
        for cls in classes
    )
    return made[0] if len(made) == 1 else made


def _hints(cls: type) -> dict[str, Any]:
    constructor: Any = cls.__init__  # type: ignore[misc]  # of this very class
    try:
        return get_type_hints(constructor)
    except NameError:  # one of them is known to type checkers alone
        return {each.name: each.annotation for each in inspect.signature(cls).parameters.values()}


def _flags(cls: type, name: str) -> list[str]:
    flag = f"--{cls.__name__.lower()}.{name}"
    return sorted({flag, flag.replace("_", "-")})


def _add_option(parser: argparse.ArgumentParser, cls: type, name: str, default: object, hint: Any) -> None:
    core, is_optional = _without_none(hint)
    about = "required" if default is inspect.Parameter.empty else f"default: {default}".replace("%", "%%")
    options: dict[str, Any] = {"help": about}
    if get_origin(core) is list:
        options["nargs"] = "*"
        core, may_be_none = _without_none((*get_args(core), str)[0])
    else:
        may_be_none = is_optional
    if default is inspect.Parameter.empty:
        options |= {"default": None} if is_optional else {"required": True}
    convert: Callable[[str], Any] = core if core in (int, float) else _flag if core is bool else str
    options["type"] = _nullable(convert) if may_be_none else convert
    parser.add_argument(*_flags(cls, name), dest=f"{cls.__name__}.{name}", **options)


def _without_none(hint: Any) -> tuple[Any, bool]:
    if get_origin(hint) not in (Union, UnionType) or type(None) not in get_args(hint):
        return hint, False
    others = [each for each in get_args(hint) if each is not type(None)]
    return others[0] if len(others) == 1 else None, True


def _flag(text: str) -> bool:
    return _BOOL.validate_strings(text)


def _nullable(convert: Callable[[str], T]) -> Callable[[str], T | None]:
    def read(text: str) -> T | None:
        if text.lower() in ("none", "null", "~", "nil"):
            return None
        try:
            return convert(text)
        except ValueError as exc:
            raise argparse.ArgumentTypeError(f"{text!r} cannot be read as {convert.__name__}: {exc}") from exc

    return read


nullable_str = _nullable(str)
nullable_int = _nullable(int)
nullable_float = _nullable(float)


class LightningEnvVar(Enum):
    """Variables, by the names that scripts use."""

    AGL_EMITTER_DEBUG = "AGL_EMITTER_DEBUG"
    """Has no effect here."""
    AGL_MANAGED_STORE = "AGL_MANAGED_STORE"
    AGL_CURRENT_ROLE = "AGL_CURRENT_ROLE"
    AGL_SERVER_HOST = "AGL_SERVER_HOST"
    AGL_SERVER_PORT = "AGL_SERVER_PORT"


def resolve_bool_env_var(
    env_var: LightningEnvVar, override: bool | None = None, fallback: T | None = None
) -> bool | T | None:
    """Return `override`, or else what the variable says, or else `fallback`.

    Raises:
        ValueError: When the variable is neither of the words for true and for false.
    """
    return _resolve(env_var, override, fallback, _flag)


def resolve_int_env_var(
    env_var: LightningEnvVar, override: int | None = None, fallback: T | None = None
) -> int | T | None:
    """Return `override`, or else the variable as a number, or else `fallback`.

    Raises:
        ValueError: When the variable is not a whole number.
    """
    return _resolve(env_var, override, fallback, int)


def resolve_str_env_var(
    env_var: LightningEnvVar, override: str | None = None, fallback: T | None = None
) -> str | T | None:
    """Return `override`, or else the variable, or else `fallback`."""
    return _resolve(env_var, override, fallback, str)


def _resolve(
    env_var: LightningEnvVar, override: ValueT | None, fallback: T | None, read: Callable[[str], ValueT]
) -> ValueT | T | None:
    text = os.environ.get(env_var.value)
    if override is not None or text is None:
        return fallback if override is None else override
    try:
        return read(text)
    except ValueError as exc:
        raise ValueError(f"the variable {env_var.value} is {text!r}: {exc}") from exc
