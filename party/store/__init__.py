"""Files that a party keeps of runs: mode 0600, whole or not there."""
