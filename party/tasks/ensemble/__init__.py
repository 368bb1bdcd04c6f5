"""The task of voting: classifiers on disjoint units, and their votes."""
