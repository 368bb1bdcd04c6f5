"""The store: where runs are kept, and which process drives each."""
