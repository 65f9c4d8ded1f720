"""Libraries that an environment needs, and may not find."""

import importlib
from types import ModuleType

from lightning_core.errors import ConfigError


def library(module: str, *, extra: str) -> ModuleType:
    """Import the library of an environment.

    Raises:
        ConfigError: When it is not there, or cannot be imported; says how to install it.
    """
    try:
        return importlib.import_module(module)
    except ImportError as exc:
        raise ConfigError(
            f"environment {extra.replace('-', '_')!r} needs the package {extra}, which cannot be imported ({exc}); "
            f"install it, from a checkout of Lightning Core: pip install './plugins/lightning-environments[{extra}]'"
        ) from exc
