"""What this party has spent, on disk before anything leaves."""
