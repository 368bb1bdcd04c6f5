"""The task of teachers: skip-grams on disjoint units, and their answers."""
