"""Public texts scored by a classifier that stays at the party."""
