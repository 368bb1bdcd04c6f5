"""Before a run: a plan is read and priced, it, this machine and the parties are checked, its text is looked at."""
