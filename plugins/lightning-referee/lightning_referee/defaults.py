"""What both the command and the algorithm take where nothing else is said."""

from typing import Final

KEY_VARIABLE: Final = "AGL_REFEREE_KEY"
"""The environment variable with the key that whoever submits has to know."""
PORT: Final = 4749
