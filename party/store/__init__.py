"""The files that a party keeps of runs: mode 0600, written completely or not at all."""
