"""The task of counting control codes: their clipped histogram."""
