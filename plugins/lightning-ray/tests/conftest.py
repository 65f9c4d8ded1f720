"""Tested where Ray is installed: with lightning-verl, in an environment of its own."""

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("ray") else ["*"]
