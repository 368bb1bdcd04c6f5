"""One run's life, from wherever it stands to its end."""
