"""Who this coordinator is, and the folder of its federation."""
