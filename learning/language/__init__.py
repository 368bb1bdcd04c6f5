"""What follows from a private language teacher without parties and without noise: writing, grading, distilling."""
