"""A check of this machine that anybody can run: `python -m lightning_verl.check`."""
