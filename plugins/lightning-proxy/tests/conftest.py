"""Fixtures of this folder's tests, and the way to its helper modules."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from proxy_fixtures import *  # noqa: F403
