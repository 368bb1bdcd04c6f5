"""Mechanisms: what bounds, noises, sums and prices one kind of answer, the same object at both ends."""
