"""Mechanisms: one object that bounds, noises, sums and prices one kind of answer, the same at party and coordinator."""
