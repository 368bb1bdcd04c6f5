"""What is learned: reading text, words, co-occurrence, the skip-gram student, and how well it does."""
