"""Audits of a plan by simulation: canaries that coins put into simulated shards, and attacks on all that comes out."""
