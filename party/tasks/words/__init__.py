"""The code that all tasks about words share: they read a vocabulary, and count within a window."""
