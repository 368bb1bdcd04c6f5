"""Text from where it is: sources, words, labels, corpora larger than memory."""
