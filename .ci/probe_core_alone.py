"""Run by wheels.py where only the core is installed: it works, and says which package a plugin's name needs."""

import sys
from pathlib import Path

import lightning_core
from lightning_core import Trainer
from lightning_core.errors import UnknownComponent

if not Path(lightning_core.__file__).is_relative_to(sys.prefix):
    sys.exit(f"lightning_core was imported from {lightning_core.__file__}, not from {sys.prefix}")
if not Path(lightning_core.__file__).with_name("py.typed").is_file():
    sys.exit("the core wheel lacks lightning_core/py.typed, so type checkers would ignore its annotations")

try:
    Trainer(algorithm="apo")
except UnknownComponent as error:
    if "ships in lightning-apo" not in str(error):
        sys.exit(f"the error does not say which package to install: {error}")
else:
    sys.exit("Trainer(algorithm='apo') was built although lightning-apo is not installed")
