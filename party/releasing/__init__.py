"""Releasing: the bounded sums that leave a party, with noise, and masked for the secure sum."""
