"""Trains many times, one after another, each time with a Ray of its own. Run by the tests:

python in_one_process.py '[["the options of letters.py"], ["those of the next training"]]'
"""

import json
import sys

import letters
import ray

from lightning_core.errors import LightningError


def main() -> None:
    for options in json.loads(sys.argv[1]):
        try:
            letters.main(options)
        except (LightningError, OSError) as exc:
            print("FAILED", json.dumps(f"{type(exc).__name__}: {exc}"), flush=True)
        print("LEFT", json.dumps({"ray": ray.is_initialized()}), flush=True)


if __name__ == "__main__":
    main()
