"""The `party` command, and what it looks at before it serves."""
