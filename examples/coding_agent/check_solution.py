"""Prints 1 when the function in ./solution.py passes its checks, else 0: `python check_solution.py NAME`."""

import runpy
import sys
from pathlib import Path
from typing import Any

from python_functions import FUNCTIONS


def passes(solution: Path, checks: dict[str, Any]) -> bool:
    """Return whether each call gives what it should. Code that raises, or is not there, gives nothing."""
    try:
        names = runpy.run_path(str(solution))
        return all(eval(call, names) == value for call, value in checks.items())
    except Exception as exc:
        print(f"{type(exc).__name__}: {exc}", file=sys.stderr)
        return False


if __name__ == "__main__":
    print(int(passes(Path("solution.py"), FUNCTIONS[sys.argv[1]].checks)))
