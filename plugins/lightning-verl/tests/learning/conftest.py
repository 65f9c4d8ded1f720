import sys
from pathlib import Path

from hypothesis import settings

sys.path.append(str(Path(__file__).parent))  # what the tests share

settings.register_profile("learning", deadline=None)  # how long it takes is no matter of these tests
settings.load_profile("learning")
