from .algorithm import Referee as Referee
from .comparison import level_of as level_of, verdict as verdict

__all__ = ["Referee", "level_of", "verdict"]

KEY_VARIABLE: str
PORT: int
