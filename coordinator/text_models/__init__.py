"""The code that all systems training a text model share."""
