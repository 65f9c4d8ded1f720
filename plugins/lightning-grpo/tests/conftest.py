"""Tested where torch is installed: training has an environment of its own."""

import os
import sys
from importlib.util import find_spec
from pathlib import Path

collect_ignore_glob = [] if find_spec("torch") else ["*"]

os.environ.setdefault("OMP_NUM_THREADS", "1")  # more threads only wait for each other where models are this small

sys.path.append(str(Path(__file__).parent))  # its toys
sys.path.append(str(Path(__file__).parents[2] / "lightning-tokens" / "tests" / "learning"))  # its toys
