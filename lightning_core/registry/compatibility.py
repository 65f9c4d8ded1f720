"""Whether a plugin fits the core that is installed, from metadata alone."""

import importlib.metadata
import re
from collections.abc import Iterable

CORE = "lightning-core"
_NAMES_CORE = re.compile(r"\s*lightning[-_.]core(?![-_.\w])", re.IGNORECASE)


def core_version() -> str:
    """Return the version of the core that is installed.

    Raises:
        importlib.metadata.PackageNotFoundError: When the core runs without being installed.
    """
    return importlib.metadata.version(CORE)


def misfit(requirements: Iterable[str]) -> str | None:
    """Say how a distribution's requirements and the installed core do not fit each other; None when they do.

    Args:
        requirements: The distribution's `Requires-Dist`. Only those on the core are read, and of these only those
            that hold in this environment without an extra.
    """
    for line in requirements:
        if _NAMES_CORE.match(line) and (problem := _misfit(line)) is not None:
            return problem
    return None


def _misfit(line: str) -> str | None:
    # imported here, for it takes long and a core without plugins does not need it
    from packaging.requirements import InvalidRequirement, Requirement

    try:
        requirement = Requirement(line)
    except InvalidRequirement as exc:
        return f"requires {line!r}, which cannot be read ({str(exc).splitlines()[0]})"
    if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
        return None
    installed = core_version()
    if requirement.specifier.contains(installed, prereleases=True):
        return None
    return f"requires {CORE}{requirement.specifier}, but {CORE} {installed} is installed"
