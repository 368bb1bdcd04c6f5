"""A text model that one party trains alone."""
