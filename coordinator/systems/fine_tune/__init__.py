"""A text model trained without privacy on simulated text, to be compared with."""
