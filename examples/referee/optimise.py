"""A scripted optimiser that plays against a referee: it climbs on training samples, and asks if its lead there is real.

python optimise.py lines.txt --url http://127.0.0.1:4749
"""

import argparse
import json
import os
import random
import urllib.request
from pathlib import Path
from typing import Any


def ask(url: str, body: Any = None) -> Any:
    """Send a request with the key, and return the answer."""
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {os.environ['AGL_REFEREE_KEY']}"})
    if body is not None:
        request.data = json.dumps(body).encode()
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)


def ask_until_ended(url: str, path: str, body: Any) -> Any:
    """Ask something about a candidate, and wait: each request waits for up to 30 seconds."""
    told = ask(f"{url}{path}", body)
    while told["status"] == "running":
        told = ask(f"{url}/candidates/{told['candidate']}")
    return told


def optimise(url: str, lines: list[str], *, lead: float, seed: int) -> None:
    """Climb on training samples, a line at a time; let the leader challenge the best one where it is far ahead."""
    chance = random.Random(seed)
    leader = best = ask_until_ended(url, "/candidates/0", None)

    def challenge() -> None:
        nonlocal best
        told = ask_until_ended(url, f"/candidates/{leader['candidate']}/challenge", {})
        words = "is better" if told["beats_best"] else "is not shown to be better"
        print(f"candidate {told['candidate']} {words} than candidate {best['candidate']} on hidden samples", flush=True)
        best = told if told["beats_best"] else best

    tried: set[tuple[str, str]] = set()  # a line, and the prompt that it was added to
    while (rules := ask(f"{url}/rules"))["candidates_left"]:
        (name, text), *_ = leader["prompts"].items()
        absent = [line for line in lines if line not in text]
        if all((line, text) in tried for line in absent):
            break
        if ((line := chance.choice(absent)), text) in tried:
            continue
        tried.add((line, text))
        edited = f"{line}\n{text}"
        told = ask_until_ended(url, "/candidates", {"prompts": {name: edited}, "parent": leader["candidate"]})
        print(f"candidate {told['candidate']}: {told['train_reward']:.2f} on training samples", flush=True)
        if told["train_reward"] > leader["train_reward"]:
            leader = told
            if leader["train_reward"] >= best["train_reward"] + lead and rules["challenges_left"] > 1:
                challenge()
    if leader["train_reward"] > best["train_reward"]:
        challenge()  # the last one is kept for the end
    ask(f"{url}/finish", {})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Improves a prompt by lines that are drawn from a file.")
    parser.add_argument("lines", type=Path, help="the lines to draw from")
    parser.add_argument("--url", default="http://127.0.0.1:4749", help="where the referee is")
    parser.add_argument("--lead", type=float, default=0.2, help="how far ahead of the best one a challenger has to be")
    parser.add_argument("--seed", type=int, default=0, help="of the draws")
    options = parser.parse_args()
    given = [line for line in options.lines.read_text(encoding="utf-8").splitlines() if line]
    optimise(options.url, given, lead=options.lead, seed=options.seed)
