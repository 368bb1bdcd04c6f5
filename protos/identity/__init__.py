"""Identity: certificates, signatures and mutual TLS."""
