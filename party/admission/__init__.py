"""Admission: whether this party takes part in a run, and how much work it may be asked for."""
