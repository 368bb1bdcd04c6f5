"""What `coordinator init` asks, first and then, and what it shows meanwhile."""
