"""DP-SGD: per-example gradients, clipped sums, and the units they are of."""
