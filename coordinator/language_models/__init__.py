"""What recipes of language models share: their plans, their public model, the counts that tilt it."""
