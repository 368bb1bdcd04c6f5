"""Deployment: how parties are put on machines. The only package that may import all others."""
