"""Options whose values are in environment variables, as LiteLLM writes them: `os.environ/NAME`."""

import os

from lightning_core.errors import ConfigError

_PREFIX = "os.environ/"


def from_environment(option: str, value: str) -> str:
    """Return an option's value, which may be in a variable.

    Raises:
        ConfigError: When that is not set.
    """
    if not value.startswith(_PREFIX):
        return value
    name = value.removeprefix(_PREFIX)
    found = os.environ.get(name)
    if not found:
        raise ConfigError(f"{option} is to come from the variable {name}, which is not set; set it")
    return found
