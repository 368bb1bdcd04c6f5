"""Clipped moments of word vectors along public directions."""
