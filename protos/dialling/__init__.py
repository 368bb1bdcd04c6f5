"""How a party that only dials out and its coordinator's gate speak, until the connection carries a gRPC one."""
