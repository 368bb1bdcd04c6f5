"""Pricing: a plan's releases, the noise of each, and what they cost together."""
