"""What people and metrics see of a run."""
