"""All parties as one: asked at once, summed securely, losses survived."""
