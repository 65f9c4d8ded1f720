"""The plugin of docs/plugins.md and the store of docs/components.md work under the names that the pages give them."""

import asyncio
import os
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from click.testing import CliRunner

from lightning_core import LightningStore, Trainer, rollout
from lightning_core.cli import agl
from lightning_core.registry import default_registry
from tests.docs.run_page import blocks

DOCS = Path(__file__).parents[2] / "docs"
PARTS = {
    "loggers": ("lines", "Lines"),
    "graders": ("close_to",) * 2,
    "commands": ("hello",) * 2,
    "exports": ("inputs",) * 2,
}


@rollout
async def halve(task: dict[str, float]) -> float:
    return task["half"] / 2


@pytest.fixture
def page_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Return a function that writes a file of a page where it can be imported."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)

    def write(page: str, title: str) -> None:
        [code] = [each.code for each in blocks((DOCS / page).read_text(encoding="utf-8")) if each.title == title]
        (tmp_path / title).write_text(code, encoding="utf-8")

    return write


def test_a_logger_a_grader_a_command_and_an_export_work_by_name(page_file, capsys: pytest.CaptureFixture[str]):
    page_file("plugins.md", "my_plugin.py")
    import my_plugin

    added = [
        default_registry().register(kind, name, getattr(my_plugin, attribute))
        for kind, (name, attribute) in PARTS.items()
    ]
    try:
        trainer = Trainer(
            algorithm="baseline", loggers=["lines"], reward={"name": "close_to", "decimals": 1}, run_dir="runs"
        )
        result = trainer.fit(halve, [{"half": 3, "answer": 1.52}])
        assert result.metrics["train_reward"] == 1.0
        said = capsys.readouterr().out
        assert said.startswith("begin run-")
        assert said.endswith("succeeded\n")
        assert "Hello, Ada" in CliRunner().invoke(agl, ["hello", "Ada"]).output
        assert result.folder is not None
        exported = CliRunner().invoke(agl, ["export", result.folder.name, "--to", "inputs", "-o", "in.txt"])
        assert "the inputs" in exported.output, exported.output
        assert Path("in.txt").read_text() == "{'half': 3, 'answer': 1.52}"
    finally:
        for each in added:
            each.remove()


async def _run(store: LightningStore) -> str:
    await Trainer(algorithm="baseline", store=store).fit_async(halve, [{"half": 3, "asked": "what was asked"}])
    await store.aclose()
    return store.run_id


def test_a_store_of_ones_own_is_served_by_its_import_path(page_file):
    page_file("components.md", "team_store.py")
    from team_store import TeamStore

    run_id = asyncio.run(_run(TeamStore("team.db")))
    backend = ["--backend", "team_store:TeamStore", "--path", "team.db", "--run", run_id, "--port", "0"]
    serve = [sys.executable, "-m", "lightning_core", "serve", "store", *backend]
    with subprocess.Popen(serve, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": "."}) as server:
        try:
            assert server.stdout is not None
            url = server.stdout.readline().split()[-1]
            with urllib.request.urlopen(f"{url}/v1/agl/rollouts") as answer:
                assert b"what was asked" in answer.read()
            with urllib.request.urlopen(url) as answer:
                assert b"<html" in answer.read()
        finally:
            server.terminate()
