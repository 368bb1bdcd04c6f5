"""Spans and logs of a run, and what they may hold."""
