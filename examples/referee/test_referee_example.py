import os
import re
import socket
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parent
QUICKSTART = FOLDER.parent / "quickstart"


def test_a_scripted_optimiser_improves_the_agent_of_the_quickstart(tmp_path: Path) -> None:
    # So few hidden samples leave a better prompt unproven in about one game of twenty.
    for game in range(3):
        (folder := tmp_path / f"{game}").mkdir()
        played = play(folder)
        assert len(re.findall(r"candidate \d+: \d\.\d\d on training samples", played)) >= 4
        if re.search(r"candidate \d is better than candidate 0 on hidden samples", played):
            return
    raise AssertionError(played)


def play(tmp_path: Path) -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    url = f"http://127.0.0.1:{port}"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OPENAI_")}
    environment |= {"AGL_REFEREE_KEY": "any-key"}
    agl = Path(sys.executable).with_name("agl")
    options = ["--max-candidates", "4", "--port", port, "--runs-dir", str(tmp_path)]
    for name, size in (("train", 12), ("test", 4)):  # it takes less time
        samples = (QUICKSTART / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
        (tmp_path / f"{name}.jsonl").write_text("\n".join(samples[:size]))
        options += ["--set", f"{name}_dataset={tmp_path / name}.jsonl"]
    lines = tmp_path / "lines.txt"
    helpful = ["Use the tools.", "Work step by step.", "First list all that is asked for.", "End with Answer: 12.50"]
    lines.write_text("\n".join(helpful))
    referee = subprocess.Popen([str(agl), "referee", str(QUICKSTART / "config.yaml"), *options], env=environment)
    try:
        wait = ["curl", "--silent", "--retry", "60", "--retry-delay", "1", "--retry-connrefused"]
        subprocess.run([*wait, f"{url}/rules"], check=True, timeout=90)
        script = [sys.executable, str(FOLDER / "optimise.py"), str(lines), "--lead", "0.3", "--url", url]
        played = subprocess.run(script, env=environment, check=True, capture_output=True, text=True, timeout=90)
        assert referee.wait(60) == 0
    finally:
        referee.kill()
        referee.wait()
    return played.stdout
