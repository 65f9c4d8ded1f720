"""`agl plugins`."""

import json
import os
import subprocess
import sys
from pathlib import Path

from click.testing import CliRunner

from lightning_core.cli import agl
from lightning_core.cli.plugins import plain_table
from lightning_core.registry import KINDS, default_registry


def test_plugins_lists_every_component_in_plain_columns_when_not_on_a_terminal() -> None:
    result = CliRunner().invoke(agl, ["plugins"])
    assert result.exit_code == 0
    heading, *lines = result.stdout.splitlines()
    assert heading.split() == ["kind", "name", "distribution", "version", "object"]
    assert len(lines) == sum(len(default_registry().components(kind)) for kind in KINDS)
    baseline = next(line.split() for line in lines if line.split()[:2] == ["algorithms", "baseline"])
    assert baseline[2] == "lightning-core"
    assert baseline[4] == "lightning_core.algorithm.baseline:Baseline"


def test_plugins_as_json_has_the_same_components() -> None:
    result = CliRunner().invoke(agl, ["plugins", "--json"])
    records = json.loads(result.stdout)
    assert [record["name"] for record in records if record["kind"] == "commands"][:1] == ["plugins"]
    assert all(set(record) == {"kind", "name", "distribution", "version", "object"} for record in records)


def test_plain_table_is_aligned_and_has_no_trailing_spaces() -> None:
    assert plain_table([("stores", "a", "lightning-core", "1.0", "x:Y")]).splitlines() == [
        "kind    name  distribution    version  object",
        "stores  a     lightning-core  1.0      x:Y",
    ]


def test_listing_imports_no_plugin_and_nothing_heavy(tmp_path: Path) -> None:
    information = tmp_path / "somebodys-0.1.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: somebodys\nVersion: 0.1\n")
    (information / "entry_points.txt").write_text("[lightning_core.algorithms]\nfancy = fancy_algorithm:Fancy\n")
    (tmp_path / "fancy_algorithm.py").write_text("class Fancy: ...\n")
    program = (
        "import sys\n"
        "from lightning_core.cli import agl\n"
        "agl(['plugins'], standalone_mode=False)\n"
        "print(*sys.modules, file=sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert "fancy_algorithm:Fancy" in done.stdout
    unwanted = {"fancy_algorithm", "lightning_apo", "openai", "opentelemetry.sdk", "pydantic", "rich", "aiohttp"}
    assert not unwanted & set(done.stderr.split())
