"""Versions that were not tried are refused, all at once."""

import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from lightning_verl.algorithm import check_versions
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from lightning_core.errors import ConfigError


def test_the_environment_of_these_tests_is_supported() -> None:
    check_versions()


def test_all_that_is_wrong_is_said_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    real, found = metadata.version, {"verl": "0.8.0", "torch": "2.13.0+cpu", "ray": "2.60.0", "transformers": "5.1"}

    def version(name: str) -> str:
        if name == "tensordict":
            raise metadata.PackageNotFoundError(name)
        return found.get(name) or real(name)

    monkeypatch.setattr(metadata, "version", version)
    with pytest.raises(ConfigError) as caught:
        check_versions()
    message = str(caught.value)
    assert "verl is 0.8.0, verl<0.10,>=0.9.1 is needed" in message
    assert "tensordict is not installed, tensordict<0.11,>=0.10 is needed" in message
    assert "torch is" not in message
    assert "README" in message


RESOLVED = {"fastapi": "0.136.3"}
"""What the constraints for GPUs came to, of what they bound and do not pin."""


def test_the_constraints_for_gpus_are_what_verls_extra_pins_and_what_our_packages_allow() -> None:
    root = Path(__file__).parents[3]
    lines = (root / "constraints-verl-gpu.txt").read_text(encoding="utf-8").splitlines()
    given = {canonicalize_name(each.name): each.specifier for line in lines if (each := _requirement(line))}
    extra = [Requirement(line) for line in metadata.requires("verl") or ()]
    of_vllm = [each for each in extra if each.marker and each.marker.evaluate({"extra": "vllm"})]
    pins = [each for each in of_vllm if "==" in str(each.specifier)]
    assert {canonicalize_name(each.name) for each in pins} >= {"torch", "transformers", "vllm"}
    for each in pins:
        assert given[canonicalize_name(each.name)] == each.specifier, each.name
    for name in ("", *(f"plugins/lightning-{plugin}" for plugin in ("http", "proxy", "sqlite", "verl", "viewer"))):
        project = tomllib.loads((root / name / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        for requirement in map(Requirement, project["dependencies"]):
            allowed = given.get(canonicalize_name(requirement.name), SpecifierSet())
            version = next((each.version for each in allowed if each.operator == "=="), RESOLVED.get(requirement.name))
            assert not allowed or version in requirement.specifier, f"{name}: {requirement}"


def _requirement(line: str) -> Requirement | None:
    return Requirement(line) if line and not line.startswith("#") else None
