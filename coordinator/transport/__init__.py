"""One party, over gRPC: verbs, deadlines, retries."""
