"""Runs for other programs: datasets, ATIF trajectories, OpenTelemetry traces; and ATIF trajectories as runs."""
