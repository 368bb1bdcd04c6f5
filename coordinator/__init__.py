"""One run: the plan, the federation it talks to, one recipe per system, publishing, and the run store."""
