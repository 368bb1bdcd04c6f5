"""Skip-gram teachers on disjoint units, and their answers."""
