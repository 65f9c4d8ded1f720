"""Versions that were not tried are refused, all at once."""

from importlib import metadata

import pytest
from lightning_verl.requirements import SUPPORTED, check_versions
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from lightning_core.errors import ConfigError


def test_the_environment_of_these_tests_is_supported() -> None:
    check_versions()


def test_all_that_is_wrong_is_said_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {"verl": "0.8.0", "TransferQueue": "0.1.11", "torch": "2.13.0+cpu", "ray": "2.60.0", "transformers": "5.1"}

    def version(name: str) -> str:
        if name not in found:
            raise metadata.PackageNotFoundError(name)
        return found[name]

    monkeypatch.setattr(metadata, "version", version)
    with pytest.raises(ConfigError) as caught:
        check_versions()
    message = str(caught.value)
    assert "verl is 0.8.0, verl>=0.9.1,<0.10 is needed" in message
    assert "tensordict is not installed, tensordict>=0.10,<0.11 is needed" in message
    assert "torch is" not in message
    assert "README" in message


def test_what_the_package_asks_of_pip_is_what_it_checks() -> None:
    requirements = [Requirement(line) for line in metadata.requires("lightning-verl") or ()]
    asked = {canonicalize_name(each.name): each.specifier for each in requirements}
    for name, wanted in SUPPORTED.items():
        assert asked[canonicalize_name(name)] == SpecifierSet(wanted), name
