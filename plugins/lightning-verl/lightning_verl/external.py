"""Registers what verl finds by name; verl imports it wherever it makes a model (`model.external_lib`)."""

import lightning_verl.cpu.engines
import lightning_verl.hf.register  # noqa: F401
