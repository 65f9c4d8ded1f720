"""What is learned from rollouts: rows, credit, groups, advantages, metrics. Python and numpy; no torch, ray or verl."""
