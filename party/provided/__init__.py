"""What a coordinator provided, read as hostile, and written anew before anything loads it."""
