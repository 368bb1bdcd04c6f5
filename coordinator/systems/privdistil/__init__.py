"""PrivDistil: public text chosen privately, a student distilled on it and fine-tuned privately."""
