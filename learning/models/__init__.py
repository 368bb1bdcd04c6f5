"""Public models and their tokens: loaded, begun, adapted, batched."""
