"""`python -m lightning_agentops PROGRAM`: run a program whose AgentOps SDK reports to `agl agentops`.

Needed where OpenTelemetry is 1.45 or later: AgentOps' own exporter sends nothing there. See `program`.
"""

import runpy
import sys


def main() -> None:
    """Run the program whose name and arguments follow, as `python` would."""
    if len(sys.argv) < 2:
        sys.exit("usage: python -m lightning_agentops PROGRAM [ARGUMENTS]; PROGRAM is a Python file")
    from pathlib import Path

    from lightning_agentops.program import repair_exporters

    program = sys.argv[1]
    if not Path(program).is_file():
        sys.exit(f"{program} is not a file; give the Python file of the program")
    repair_exporters()
    del sys.argv[0]
    sys.path[0] = str(Path(program).resolve().parent)
    runpy.run_path(program, run_name="__main__")


if __name__ == "__main__":
    main()
