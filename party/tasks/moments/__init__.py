"""The task of moments: clipped moments of word vectors along public directions."""
