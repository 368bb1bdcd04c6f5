"""The federation: all parties of a run, asked at once and summed securely; losses of parties are survived."""
