"""The task of a data set: a noisy vector of each text, with its label."""
