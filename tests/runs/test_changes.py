"""What is different from what a run was made of is told by name."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lightning_core.runs.manifest import Git, Origin, changes_since, describe_origin, hash_file, version_of
from lightning_core.testing.store.base import present


def origin(**fields: Any) -> Origin:
    return Origin(python="3.11.7", **fields)


@pytest.mark.parametrize(
    ("before", "now", "changes"),
    [
        ({"n_runners": 8}, {"n_runners": 8}, []),
        ({"n_runners": 8}, {"n_runners": 16}, ["n_runners 8 → 16"]),
        ({"a": {"b": {"c": 1}}}, {"a": {"b": {"c": None, "d": True}}}, ["a.b.c 1 → unset", "a.b.d unset → true"]),
        ({"prompt": "one\ntwo"}, {"prompt": "one"}, ["prompt one two → one"]),
        ({"train_dataset": [1, 2]}, {"train_dataset": [1]}, ["train_dataset [1, 2] → [1]"]),
        ({"x": "y" * 100}, {"x": "z"}, [f"x {'y' * 39}… → z"]),
        ({"hooks": ("a",)}, {"hooks": ["a"]}, []),
        ({"budget": {"calls": 4}, "llm_proxy": {"budget": {"usd": 1}}}, {"budget": {"calls": 9}, "llm_proxy": {}}, []),
    ],
)
def test_values_of_the_config_are_told_with_their_place(
    before: dict[str, Any], now: dict[str, Any], changes: list[str]
) -> None:
    assert changes_since(origin(config=before), origin(config=now)) == changes


def test_files_are_compared_by_what_is_in_them(tmp_path: Path) -> None:
    same, changed, gone = (tmp_path / name for name in ("same.py", "changed.py", "gone.py"))
    for file in (same, changed, gone):
        file.write_text("x = 1\n")
    before = origin(files={str(file): hash_file(file) for file in (same, changed, gone)})
    changed.write_text("x = 2\n")
    gone.unlink()
    assert changes_since(before, origin()) == [str(changed), f"{gone} (gone)"]


def test_versions_are_compared_with_what_is_installed() -> None:
    pytest_version = present(version_of("pytest"))
    before = Origin(python="3.9.1", versions={"pytest": pytest_version, "click": "0.1", "no-such-thing": "2.0"})
    assert changes_since(before, origin()) == [
        "Python 3.9.1 → 3.11.7",
        f"click 0.1 → {version_of('click')}",
        "no-such-thing 2.0 → not installed",
    ]


@pytest.mark.parametrize(
    ("before", "now", "changes"),
    [
        (None, None, []),
        (Git(commit="a" * 40, dirty=False), Git(commit="b" * 40, dirty=False), [f"git: {'a' * 12} → {'b' * 12}"]),
        (None, Git(commit="a", dirty=False), ["git: no repository → a"]),
        (Git(commit="a", dirty=True), None, ["git: a with uncommitted changes → no repository"]),
    ],
)
def test_the_repository_is_compared(before: Git | None, now: Git | None, changes: list[str]) -> None:
    assert changes_since(origin(git=before), origin(git=now)) == changes


def test_a_run_is_made_of_versions_code_data_and_a_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def git(*arguments: str) -> None:
        name = ("-c", "user.name=A", "-c", "user.email=a@b.c")
        subprocess.run(["git", "-C", str(tmp_path), *name, *arguments], check=True, capture_output=True)

    (tmp_path / "described_module.py").write_text("x = 1\n")
    (tmp_path / "train.jsonl").write_text("1\n")
    git("init")
    git("add", ".")
    git("commit", "-m", "first")
    monkeypatch.syspath_prepend(str(tmp_path))
    __import__("described_module")
    try:
        (tmp_path / "runs").mkdir()
        (tmp_path / "runs" / "new").write_text("not known to git")
        described = describe_origin(
            config_file=tmp_path / "config.yaml", data_files=[tmp_path / "train.jsonl", tmp_path / "none"], seed=3
        )
        assert {str(tmp_path / "described_module.py"), str(tmp_path / "train.jsonl")} <= described.files.keys()
        assert not any("site-packages" in file or "lightning_core/runs" in file for file in described.files)
        assert described.versions["pydantic"] == version_of("pydantic")
        assert described.versions["lightning-core"] == version_of("lightning-core")
        assert described.git is not None
        assert not described.git.dirty
        (tmp_path / "train.jsonl").write_text("2\n")
        later = describe_origin(config_file=tmp_path / "config.yaml")
        assert present(later.git).dirty
        commit = described.git.commit[:12]
        changed = f"git: {commit} → {commit} with uncommitted changes"
        assert changes_since(described, later) == [str(tmp_path / "train.jsonl"), changed]
    finally:
        del sys.modules["described_module"]


def test_without_a_repository_or_git_there_is_no_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert describe_origin(config_file=tmp_path / "config.yaml").git is None
    monkeypatch.setenv("PATH", str(tmp_path))
    assert describe_origin(config_file=Path(__file__)).git is None
