"""The task of language models on disjoint units, which say what might stand in the place of tokens."""
