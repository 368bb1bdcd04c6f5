"""One run: the plan, the federation of parties, one recipe per system, publishing, and the run store."""
