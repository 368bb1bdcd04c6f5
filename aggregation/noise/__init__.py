"""Noise from a cryptographic stream: rounded Gaussian, discrete Gaussian, Skellam, by shares."""
