"""Tested where verl is installed: it has an environment of its own."""

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("verl") else ["*"]
