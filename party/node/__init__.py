"""The gRPC node: its verbs, who may call them, and the life of its process."""
