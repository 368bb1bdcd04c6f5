"""Files that a coordinator provides: read as hostile, and written anew before anything loads them."""
