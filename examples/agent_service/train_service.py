"""Start the service, teach a tiny model, and let GRPO train it behind the service, on a processor.

python examples/agent_service/train_service.py
"""

import argparse
import os
import random
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

# Before torch is imported: more threads only wait for each other where a model is this small.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TQDM_DISABLE", "1")

from agent_client import MAX_TURNS, solve
from agent_service import MODEL, read_number

from lightning_core import Trainer
from lightning_core.cli.options import runs_root
from lightning_core.config.datasets import Hub, load_dataset
from lightning_core.errors import LightningError
from lightning_core.types import RolloutConfig, samples_of

HERE = Path(__file__).resolve().parent
HUB = Hub(name="hf:openai/gsm8k", subset="main", split="train")
BATCH, GROUP = 8, 8
"""Problems of a step, and how often each of them is tried."""


@contextmanager
def service(notify_file: Path) -> Iterator[str]:
    """Run the service for the block, in a process of its own, and yield its URL."""
    with socket.create_server(("127.0.0.1", 0)) as listening:  # it takes connections before the service is up
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        process = subprocess.Popen(
            [sys.executable, "-m", "uvicorn", "agent_service:app", f"--fd={listening.fileno()}", "--log-level=warning"],
            cwd=HERE,
            env={**os.environ, "LLM_SERVER_NOTIFY_FILE": str(notify_file), "AGENT_SERVICE_ENDS_WITH_STDIN": "1"},
            stdin=subprocess.PIPE,
            pass_fds=[listening.fileno()],
            process_group=0,  # Ctrl-C is for this process, which ends the service when the run has ended
        )
    try:
        yield url
    finally:
        process.communicate()  # closes its stdin, and waits


def tell_address(notify_file: Path) -> int:
    """Choose a port for the model proxy, and write where that is into the file that the service reads."""
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port: int = unused.getsockname()[1]
    notify_file.write_text(f"127.0.0.1:{port}\n", encoding="utf-8")
    return port


def algorithm(model: Path, *, steps: int, seed: int) -> dict[str, Any]:
    """Return what trains a model: GRPO, in this process."""
    return {
        "name": "grpo",
        "model": str(model),
        "steps": steps,
        "batch_size": BATCH,
        "group_size": GROUP,
        "learning_rate": 1e-3,
        "max_tokens": 976,
        "validate_every": steps,
        "seed": seed,
    }


class Steps:
    """Prints a line for each step."""

    def lightning_step_end(self, step: int, metrics: Mapping[str, float | None]) -> None:
        """Print it."""
        print(f"step {step:3}  reward {metrics.get('training/reward') or 0.0:.2f}", flush=True)


def main() -> int:
    """Do all of it; return the exit status."""
    given = arguments()
    rows = samples_of(load_dataset(given.data or HUB, Path.cwd()))
    rows = [row for row in rows if len(read_number(str(row.get("answer")))) == 1]  # others would never be guessed
    if len(rows) < 2 * BATCH:
        raise LightningError(f"{given.data or HUB.name} needs {2 * BATCH} rows whose answer is '#### ' and one digit")
    random.Random(given.seed).shuffle(rows)
    test, train = rows[: len(rows) // 2][:100], rows[len(rows) // 2 :]
    print(f"{len(train)} rows of GSM8K to train on, {len(test)} held out; at most {MAX_TURNS} turns", flush=True)
    with tempfile.TemporaryDirectory() as folder, service(Path(folder, "llm_server")) as url:
        os.environ["AGENT_SERVICE_URL"] = url
        from tiny_model import taught_model  # torch and transformers take seconds

        print(f"teaching a tiny model: {given.teaching_steps} steps", flush=True)
        model = taught_model(
            Path(folder, "tiny"), [row["question"] for row in train], steps=given.teaching_steps, seed=given.seed
        )
        trainer = Trainer(
            algorithm=algorithm(model, steps=given.steps, seed=given.seed),
            # The notify file has no room for a key, and the service asks for `Default` whatever the model is called.
            llm_proxy={
                "key": "",
                "port": tell_address(Path(folder, "llm_server")),
                "attribution_header": "trace_id",
                "models": [{"model_name": model.name, "aliases": [MODEL]}],
            },
            run_dir=runs_root(given.runs_dir),
            n_runners=BATCH * GROUP // 2,
            rollout_config=RolloutConfig(timeout_seconds=300),
            hooks=Steps(),
        )
        result = trainer.fit(solve, train, test_dataset=test)
    if result.status != "succeeded" or result.comparison is None:
        print(f"the run ended as {result.status}")
        return 130 if result.status == "interrupted" else 1
    print(f"held-out rows, before: {result.comparison.before}")
    print(f"held-out rows, after:  {result.comparison.after}")
    print(f"row by row:            {result.comparison.difference}")
    return 0


def arguments() -> argparse.Namespace:
    """Read the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help="a file of GSM8K's rows, instead of the Hugging Face hub's")
    parser.add_argument("--steps", type=int, default=12, help="of the training (default: 12)")
    parser.add_argument("--teaching-steps", type=int, default=150, help="before it (default: 150)")
    parser.add_argument("--seed", type=int, default=0, help="of the rows, the model and what it draws (default: 0)")
    parser.add_argument("--runs-dir", type=Path, help="the folder of all runs, instead of AGL_RUNS_DIR or ./runs")
    return parser.parse_args()


if __name__ == "__main__":
    try:
        sys.exit(main())
    except LightningError as exc:
        sys.exit(f"Error: {exc}")
    except KeyboardInterrupt:
        sys.exit(130)
