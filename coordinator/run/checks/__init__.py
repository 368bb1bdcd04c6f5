"""What `coordinator check` and `coordinator doctor` look at, one module a subject; each gives lines."""
