"""Run by wheels.py where the core and lightning-apo are installed: the algorithm is found by its name."""

import sys
from pathlib import Path

import lightning_apo

from lightning_core.registry import default_registry

if not Path(lightning_apo.__file__).is_relative_to(sys.prefix):
    sys.exit(f"lightning_apo was imported from {lightning_apo.__file__}, not from {sys.prefix}")
loaded = default_registry().load("algorithms", "apo")
if loaded is not lightning_apo.APO:
    sys.exit(f"algorithm 'apo' is {loaded!r}, not lightning_apo.APO")
