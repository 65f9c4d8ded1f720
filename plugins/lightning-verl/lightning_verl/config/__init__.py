"""verl's configuration, and ours in it: merged, checked, and fitted to the data. Imports neither verl nor torch."""

from lightning_verl.config.fitting import check_settings
from lightning_verl.config.given import Source
from lightning_verl.config.layers import PRESETS
from lightning_verl.config.own import Own, TraceAggregator
from lightning_verl.config.settings import Settings, load_settings

__all__ = ["PRESETS", "Own", "Settings", "Source", "TraceAggregator", "check_settings", "load_settings"]
