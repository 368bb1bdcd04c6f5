"""What leaves a party: bounded sums with noise, masked for the secure sum."""
