"""The code that all tasks training a text model share."""
