"""What the `party` command runs: it imports as little as can be before an interrupt is taken care of."""

from protos.console.starting import started


def main() -> int:
    """Run the command; returns its exit code."""
    return started("party.console.command")
