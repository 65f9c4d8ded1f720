"""Run by wheels.py where only the core is installed: `baseline` runs from a file, and a plugin's name says which
package it needs."""

import subprocess
import sys
import tempfile
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

AGENT = """
from lightning_core import rollout

@rollout
def agent(task, prompt_template):
    return float(task["x"])
"""
CONFIG = """
agent: agent:agent
algorithm: baseline
initial_resources:
  main_prompt: {resource_type: prompt_template, template: "Hello {x}"}
train_dataset: [{x: 1}, {x: 0}]
"""

with tempfile.TemporaryDirectory() as folder:
    Path(folder, "agent.py").write_text(AGENT, encoding="utf-8")
    Path(folder, "config.yaml").write_text(CONFIG, encoding="utf-8")
    command = [Path(sys.prefix, "bin", "agl"), "train", "config.yaml"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode != 0 or "succeeded" not in done.stdout:
        sys.exit(f"baseline from a file ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    command[1] = "eval"
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode != 2 or "it ships in lightning-evals" not in done.stderr:
        sys.exit(f"agl eval does not say which package to install:\n{done.stdout}{done.stderr}")
