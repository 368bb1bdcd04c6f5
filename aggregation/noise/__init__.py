"""Noise from a cryptographic stream, in shares: rounded Gaussian, discrete Gaussian, Skellam."""
