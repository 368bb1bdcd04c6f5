"""One recipe per system, each reading like the algorithm in its paper."""
