"""What people see of a run: while it goes on, and at its end."""
