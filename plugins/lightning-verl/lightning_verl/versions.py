"""Which versions this plugin works with."""

from importlib import metadata

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from lightning_core.errors import ConfigError

SUPPORTED = {
    "verl": ">=0.9.1,<0.10",
    "TransferQueue": ">=0.1.11,<0.2",
    "ray": ">=2.41",
    "tensordict": ">=0.10,<0.11",
    "torch": ">=2.7",
    "transformers": ">=5",
}
"""By distribution. verl's trainer is not a stable API yet, so its versions are those that were tried."""


def check_versions() -> None:
    """Refuse what is missing, or of a version that was not tried. Imports none of it.

    Raises:
        ConfigError: Names everything that is wrong, and what to install.
    """
    faults = []
    for name, wanted in SUPPORTED.items():
        try:
            found = metadata.version(name)
        except metadata.PackageNotFoundError:
            faults.append(f"{name} is not installed, {name}{wanted} is needed")
            continue
        if not SpecifierSet(wanted).contains(Version(found), prereleases=True):
            faults.append(f"{name} is {found}, {name}{wanted} is needed")
    if faults:
        raise ConfigError(f"{'; '.join(faults)}. Make the environment as lightning-verl's README says")
