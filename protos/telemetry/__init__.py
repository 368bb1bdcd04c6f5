"""Telemetry: the spans and logs of a run, and what they may contain."""
