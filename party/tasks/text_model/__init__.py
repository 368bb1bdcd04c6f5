"""The task of a text model that one party trains alone."""
