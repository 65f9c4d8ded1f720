"""Fixtures of this folder's tests, and the way to its helper modules and the proxy's."""

import sys
from importlib.util import find_spec
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "lightning-proxy" / "tests")]

from proxy_fixtures import *  # noqa: F403, E402

collect_ignore = [] if find_spec("torch") else ["test_generator.py"]
