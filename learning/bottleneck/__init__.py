"""Noisy transformer embeddings: token vectors through a variational bottleneck, one sample a text, and how far samplers
of different texts are apart.
"""
