"""The manifests fit the schemas of Kubernetes, the script is sound, and their commands do one run together."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

HERE = Path(__file__).parent
MANIFESTS = [
    pytest.param(document, id=f"{path.stem}-{document['kind']}")
    for path in sorted(HERE.glob("kubernetes/*.yaml"))
    for document in yaml.safe_load_all(path.read_text(encoding="utf-8"))
]


@pytest.mark.parametrize("manifest", MANIFESTS)
def test_a_manifest_fits_the_schema(manifest: dict[str, Any]) -> None:
    kubernetes_validate.validate(manifest, "1.31", strict=True)


def test_the_slurm_script_is_sound() -> None:
    shellcheck = Path(sys.executable).parent / "shellcheck"
    done = subprocess.run([shellcheck, HERE / "run.sbatch"], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout


def arguments_of(name: str) -> list[str]:
    """Return the command of the container in a manifest."""
    for document in yaml.safe_load_all((HERE / "kubernetes" / f"{name}.yaml").read_text(encoding="utf-8")):
        if "template" in document.get("spec", {}):
            (container,) = document["spec"]["template"]["spec"]["containers"]
            return list(container["args"])
    raise AssertionError(f"{name}.yaml has no container")


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Any]:
    """Start the command of a manifest on this machine, with a port and a folder of its own."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    here = {
        "/data/store.db": str(tmp_path / "store.db"),
        "0.0.0.0": "127.0.0.1",
        "4747": str(port),
        "http://agl-store:4747": f"http://127.0.0.1:{port}",
        "store.url=http://agl-store:4747": f"store.url=http://127.0.0.1:{port}",
    }
    started: list[subprocess.Popen[str]] = []

    def start(name: str, **variables: str) -> subprocess.Popen[str]:
        command = [here.get(each, each) for each in arguments_of(name)]
        environment = {**os.environ, "AGL_RUNS_DIR": str(tmp_path / "runs"), **variables}
        process = subprocess.Popen(
            [sys.executable, "-m", "lightning_core", *command],
            cwd=HERE,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.slow
def test_the_commands_of_the_manifests_do_a_run_together(start: Any) -> None:
    store = start("store", AGL_KEY="of-all", AGL_RUNNER_KEY="of-runners")
    assert store.stdout.readline()
    runner = start("runners", AGL_KEY="of-runners")
    algorithm = start("algorithm", AGL_KEY="of-all")
    said, _ = algorithm.communicate(timeout=100)
    assert algorithm.returncode == 0, said
    assert "reward on training samples: 0.50" in said
    said, _ = runner.communicate(timeout=200)
    assert (runner.returncode, "the run has ended" in said) == (0, True), said
    store.send_signal(signal.SIGTERM)
    assert store.wait(60) == 0
