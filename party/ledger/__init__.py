"""The ledger: what this party has spent, on disk before anything leaves."""
