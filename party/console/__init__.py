"""The `party` command, and its checks before it serves."""
