"""One data holder: its shard, ledger, policy, the work on its text, and the gRPC node that answers for it."""
