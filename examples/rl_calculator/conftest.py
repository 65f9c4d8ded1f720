"""What is about training is tested where lightning-verl is installed: it has an environment of its own."""

from importlib.util import find_spec

collect_ignore = [] if find_spec("verl") else ["test_curve.py", "test_taught_model.py", "test_train.py"]
