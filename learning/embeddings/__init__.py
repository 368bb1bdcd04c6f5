"""Word embeddings: co-occurrence, teachers, the student of DPED, baselines, and how good they are."""
