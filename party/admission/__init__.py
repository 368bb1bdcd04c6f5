"""Whether this party takes part in a run, and how much it can be asked."""
