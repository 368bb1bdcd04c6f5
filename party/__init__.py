"""One party: its shard, ledger and policy, the work on its text, and the gRPC node that answers for it."""

import os

# gRPC reads it when it is first imported. Without it, every handshake that fails is a line on standard error, which
# whoever can reach the port may have written as fast as they connect.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
