"""The command: runs the stages one after another, a line each; the exit status tells whether all have passed."""

import argparse
import signal
import sys
import tempfile
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path

from lightning_verl.check.harness import Result, run
from lightning_verl.check.stages import TRAININGS
from lightning_verl.requirements import has_accelerator

_FIRST = {"versions": 300.0, "model": 300.0}
"""Seconds of the stages that train nothing."""


def main() -> int:
    """Run what the command line names."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # a stage is ended on the way out
    parser = argparse.ArgumentParser(prog="python -m lightning_verl.check", description=__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if has_accelerator() else "cpu")
    parser.add_argument("--only", help="the stages to run, with commas: versions,model,hf-grpo")
    parser.add_argument("--folder", type=Path, help="where logs are kept; without it, a temporary folder")
    parser.add_argument("--limit", type=float, default=600.0, help="the most seconds of one training (default: 600)")
    given = parser.parse_args()
    names = [*_FIRST, *(f"{engine}-{name}" for engine in ("hf", "vllm") for name in TRAININGS)]
    only = names if given.only is None else given.only.split(",")
    if unknown := set(only) - set(names):
        parser.error(f"no stage {', '.join(sorted(unknown))}; there are: {', '.join(names)}")
    folder = (given.folder or Path(tempfile.mkdtemp(prefix="gpu-check-"))).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        parser.error(f"--folder {folder} is not empty; name another one")
    print(f"{datetime.now(UTC):%Y-%m-%d}, on {given.device}; logs: {folder}", flush=True)
    results: list[Result] = []
    for name in (name for name in names if name in (*only, "model")):  # which all trainings need
        results.append(_skipped(name, given.device) or _run(name, folder, given))
        print(results[-1], flush=True)
        if name in _FIRST and results[-1].status == "FAILED":
            break  # all others need it
    failed = [each.name for each in results if each.status == "FAILED"]
    print(f"failed: {', '.join(failed)}" if failed else "all passed")
    return 1 if failed else 0


def _run(name: str, folder: Path, given: argparse.Namespace) -> Result:
    command = (sys.executable, "-m", "lightning_verl.check.stages", name, str(folder), given.device)
    return run(name, command, folder, limit_seconds=_FIRST.get(name, given.limit), device=given.device)


def _skipped(name: str, device: str) -> Result | None:
    if not name.startswith("vllm-"):
        return None
    if device == "cpu":
        why = "vLLM trains on GPUs only"
    elif find_spec("vllm") is None:
        why = "vllm is not installed"
    else:
        return None
    return Result(name, "skipped", 0, 0, why)


if __name__ == "__main__":
    sys.exit(main())
