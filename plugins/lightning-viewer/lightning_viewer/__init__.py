"""Looks into the runs of Lightning Core: a report in one HTML file, and rollouts and traces in the terminal."""
