"""`agl export`: a run in the forms that plugins offer."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from lightning_core.cli import agl
from lightning_core.registry import default_registry
from lightning_core.runs.folder import RunFolder


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    monkeypatch.chdir(tmp_path)
    folder = RunFolder.create("runs", "run-1f")
    folder.manifest_file.write_text("{}")
    return folder


def write_lines(folder: RunFolder, target: Path) -> str:
    target.mkdir()
    (target / "id").write_text(folder.run_id)
    return "one line"


def break_off(folder: RunFolder, target: Path) -> str:
    write_lines(folder, target)
    raise ZeroDivisionError


def test_it_is_written_where_nothing_was(run: RunFolder, tmp_path: Path) -> None:
    with default_registry().register("exports", "lines", write_lines):
        done = CliRunner().invoke(agl, ["export", "1f", "--to", "lines"])
        assert done.output == f"{tmp_path / 'run-1f-lines'}: one line\n"
        assert (tmp_path / "run-1f-lines" / "id").read_text() == "run-1f"
        again = CliRunner().invoke(agl, ["export", "1f", "--to", "lines"])
        assert again.exit_code == 2
        assert "run-1f-lines is there already; name another place with -o" in again.output
        other = CliRunner().invoke(agl, ["export", "1f", "--to", "lines", "-o", "new/folder"])
        assert other.exit_code == 0
        assert (tmp_path / "new" / "folder" / "id").exists()


@pytest.mark.parametrize("form", ["file", "folder"])
def test_of_two_exports_to_one_place_at_once_the_second_is_refused(run: RunFolder, form: str) -> None:
    place = Path("out")

    def write_second(folder: RunFolder, target: Path) -> str:
        for path, text in ((target, "second"), (place, "first")):  # the first is finished meanwhile
            if form == "folder":
                path.mkdir()
            (path / "rows" if form == "folder" else path).write_text(text)
        return "one line"

    with default_registry().register("exports", "lines", write_second):
        done = CliRunner().invoke(agl, ["export", "1f", "--to", "lines", "-o", "out"])
    assert done.exit_code == 2
    assert "out is there already; name another place with -o" in done.output
    assert (place / "rows" if form == "folder" else place).read_text() == "first"
    assert sorted(path.name for path in Path().iterdir()) == ["out", "runs"]


def send(folder: RunFolder, target: Path) -> str:
    return "sent"


def test_a_place_that_is_not_written_is_said(run: RunFolder) -> None:
    with default_registry().register("exports", "sent", send):
        done = CliRunner().invoke(agl, ["export", "1f", "--to", "sent", "-o", "out"])
    assert done.output == "sent; nothing was written to out, as --to sent makes no file\n"


def test_a_place_where_nothing_can_be_written_is_one_error(run: RunFolder) -> None:
    Path("file").touch()
    with default_registry().register("exports", "lines", write_lines):
        done = CliRunner().invoke(agl, ["export", "1f", "--to", "lines", "-o", "file/out"])
    assert done.exit_code == 2
    assert done.output.endswith("file/out: File exists\n")


def test_an_export_that_breaks_off_leaves_nothing(run: RunFolder, tmp_path: Path) -> None:
    with default_registry().register("exports", "broken", break_off):
        done = CliRunner().invoke(agl, ["export", "1f", "--to", "broken"])
    assert isinstance(done.exception, ZeroDivisionError)
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]
