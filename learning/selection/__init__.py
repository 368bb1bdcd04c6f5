"""Which public texts a student learns from: relevance, clusters, sampling."""
