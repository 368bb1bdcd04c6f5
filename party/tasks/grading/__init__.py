"""The task of what a language model says of every token of given texts."""
