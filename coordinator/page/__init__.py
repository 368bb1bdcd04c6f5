"""Pages: what a run or a comparison was and found, in one file that anybody can open and read."""
