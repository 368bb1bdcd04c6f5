"""DPED: embeddings distilled from noisy moments, votes and hidden states of teachers (Feng & Hong)."""
