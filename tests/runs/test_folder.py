"""Folders of runs: made, found by what a person types, removed."""

from pathlib import Path

import pytest

from lightning_core.errors import RunFolderError
from lightning_core.runs.folder import RunFolder, find_run, runs_in
from lightning_core.runs.manifest import Manifest, Origin, now


def write_manifest(folder: RunFolder, **fields: object) -> Manifest:
    values: dict[str, object] = {"run_id": folder.run_id, "algorithm": "baseline", "outcome": "running"}
    values |= {"start": now(), "store": "sqlite", "origin": Origin()} | fields
    manifest = Manifest.model_validate(values)
    manifest.write(folder.manifest_file)
    return manifest


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for run_id in ("run-aa11", "run-aa22", "run-bb33", "mine"):
        write_manifest(RunFolder.create(tmp_path / "runs", run_id))
    return tmp_path / "runs"


def test_new_run_has_an_id_of_its_own_and_a_folder_of_that_name(tmp_path: Path) -> None:
    first, second = RunFolder.create(tmp_path / "a" / "runs"), RunFolder.create(tmp_path / "a" / "runs")
    assert first.run_id != second.run_id
    assert first.path.is_dir()
    assert runs_in(tmp_path / "a" / "runs") == []  # neither has begun


@pytest.mark.parametrize("run_id", ["a/b", "..", "", ".hidden", "a b"])
def test_id_that_cannot_name_a_folder_is_refused(run_id: str, tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="cannot name a folder"):
        RunFolder.create(tmp_path, run_id)


@pytest.mark.parametrize(
    ("given", "found"),
    [("run-aa11", "run-aa11"), ("run-b", "run-bb33"), ("bb", "run-bb33"), ("aa2", "run-aa22"), ("mi", "mine")],
)
def test_run_is_found_by_its_id_or_the_beginning_of_it(given: str, found: str, root: Path) -> None:
    assert find_run(root, given).run_id == found


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("aa", "'aa' is the beginning of run-aa11, run-aa22; say more of it"),
        ("run-bb34", "no run 'run-bb34' in {root}; the nearest are run-bb33"),
        ("xyz", "no run 'xyz' in {root}; there are mine, run-aa11, run-aa22, run-bb33"),
        ("", "no run '' in {root}; there are mine, run-aa11, run-aa22, run-bb33"),
        ("empty", "{root}/empty is not a run: it has no manifest.json; list the runs with: agl runs"),
    ],
)
def test_run_that_is_not_found_is_told_with_those_that_are_near(given: str, message: str, root: Path) -> None:
    (root / "empty").mkdir()
    with pytest.raises(RunFolderError) as raised:
        find_run(root, given)
    assert str(raised.value).startswith(message.format(root=root))


def test_how_a_run_stands_depends_on_whether_somebody_works_on_it(root: Path) -> None:
    folder = RunFolder(root / "mine")
    assert folder.standing(folder.manifest()) == "killed"
    folder.lock.take()
    assert folder.standing(folder.manifest()) == "running"
    folder.lock.release()
    assert folder.standing(write_manifest(folder, outcome="interrupted")) == "interrupted"


def test_what_is_no_run_is_not_removed(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    with pytest.raises(RunFolderError, match=r"photos is not a run: it has no manifest\.json; nothing was removed"):
        RunFolder(tmp_path / "photos").remove()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "Invalid JSON: EOF"),
        ('{"format": 1, "run_id"', "Invalid JSON"),
        ('{"format": 7}', "format: Input should be 1"),
        ("[]", "Input should be an object"),
    ],
)
def test_damaged_manifest_says_what_is_wrong_and_what_to_do(text: str, message: str, root: Path) -> None:
    file = RunFolder(root / "mine").manifest_file
    file.write_text(text)
    with pytest.raises(RunFolderError) as raised:
        Manifest.read(file)
    assert str(raised.value).startswith(f"{file} is damaged: {message}")
    assert str(raised.value).endswith("or remove the run: agl runs rm mine")


def test_manifest_that_cannot_be_written_leaves_the_old_one(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = RunFolder(root / "mine")
    before = folder.manifest_file.read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(RunFolderError, match=r"cannot write .*manifest\.json: No space left on device"):
        write_manifest(folder, outcome="failed")
    assert folder.manifest_file.read_bytes() == before
    assert {each.name for each in folder.path.iterdir()} == {"manifest.json"}
