"""What may leave a party and how it is combined: mechanisms, noise, clipping, accounting."""
