"""Certificates, signatures and mutual TLS: who is at each end."""
