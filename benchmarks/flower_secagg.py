"""How long Flower's SecAgg+ takes for a sum: its own client and server functions, all rounds, in one process.

    python3 -m venv ../flower && ../flower/bin/pip install flwr==1.41.0
    ../flower/bin/python benchmarks/flower_secagg.py [--setting NAME] [--repeats N] [--with-lines]

Runs in an environment of its own, because flwr asks for an older protobuf than Conclave, and imports nothing of ours.
`SecAggPlusWorkflow` is the server and `secaggplus_mod` each client; what stands between them here hands every message
to one client after the other, so nothing is written to a wire, and copies the small records as a wire would. A party
that drops answers nothing after sharing its keys.

Clients' vectors lie on Flower's grid of 2**22 steps, so that rounding keeps them exactly, and every repeat is checked
against the integer sum. `seconds` leaves out what is not the protocol: reading the client's vector, its weight,
quantisation, the way back to floats, the strategy. `whole` has it in.

Settings: "every pair" gives each party a share of every key and needs two thirds of them, as 2 of 3 in Flower's example
flower-secure-aggregation; "seven shares" is 7 and 4 as in its example fl-dp-sa, where a party shares masks with six
others. All else is Flower's default. One JSON object per case on stdout; with `--with-lines`, one for each case that a
line of stdin asks for, run once.
"""

import argparse
import importlib
import json
import logging
import os
import random
import statistics
import sys
import time

os.environ["FLWR_TELEMETRY_ENABLED"] = "0"

import flwr
import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.common import Code, FitIns, FitRes, Parameters, Status, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS, Key, Stage
from flwr.compat.common.recorddict_compat import fitres_to_recorddict
from flwr.server import LegacyContext
from flwr.server.client_manager import SimpleClientManager
from flwr.server.client_proxy import ClientProxy
from flwr.server.strategy import FedAvg
from flwr.server.workflow.constant import MAIN_CONFIGS_RECORD, MAIN_PARAMS_RECORD
from flwr.server.workflow.constant import Key as WorkflowKey
from flwr.supercore.task_identity import TaskIdentity

# By name: the packages above them export functions that are called as the modules are.
client = importlib.import_module("flwr.client.mod.secure_aggregation.secaggplus_mod")
server = importlib.import_module("flwr.server.workflow.secure_aggregation.secaggplus_workflow")
logging.getLogger("flwr").setLevel(logging.CRITICAL)
TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1  # what a message says of who sent it

CASES = [(5, 1_000_000, 0), (10, 1_000_000, 0), (10, 1_000_000, 2), (32, 100_000, 0)]
SETTINGS = {"every pair": (1.0, 2 / 3), "seven shares": (7, 4)}
REPEATS = 5
CLIP, STEPS, WEIGHT = 8.0, 2**22, 1000
STEP = 2 * CLIP / STEPS
OUTSIDE = [
    (client, ("parameters_to_ndarrays", "parameters_multiply", "quantize")),
    (server, ("dequantize", "ndarrays_to_parameters")),
]


class Stopwatch:
    """Adds up the seconds of the functions that are not the protocol's."""

    def __init__(self):
        self.seconds = 0.0

    def around(self, function):
        def timed(*arguments, **named):
            begun = time.perf_counter()
            try:
                return function(*arguments, **named)
            finally:
                self.seconds += time.perf_counter() - begun

        return timed


class Strategy(FedAvg):
    """Asks every client, and keeps the mean that the workflow found instead of averaging it again."""

    def configure_fit(self, server_round, parameters, client_manager):
        return [(proxy, FitIns(parameters, {})) for proxy in client_manager.all().values()]

    def aggregate_fit(self, server_round, results, failures):
        self.parameters = results[0][1].parameters
        return None, {}


class Proxy(ClientProxy):
    """A name in the workflow's list of clients; messages do not go through it."""

    def __init__(self, node):
        super().__init__(str(node))
        self.node_id = node

    def get_properties(self, ins, timeout, group_id):
        raise NotImplementedError

    get_parameters = fit = evaluate = reconnect = get_properties


class OneProcess:
    """What `SecAggPlusWorkflow` uses of a grid: every message answered at once by its client, one after the other."""

    def __init__(self, vectors, dropped, watch):
        self.fits = {node: watch.around(self._fit(vector)) for node, vector in vectors.items()}
        self.contexts = {node: Context(1, node, {}, RecordDict(), {}) for node in vectors}
        self.dropped = dropped

    @staticmethod
    def _fit(vector):
        def fit(message, context):
            result = FitRes(Status(Code.OK, ""), vector, WEIGHT, {})
            return Message(fitres_to_recorddict(result, keep_input=True), reply_to=message)

        return fit

    def send_and_receive(self, messages, *, timeout=None):
        replies = []
        for message in messages:
            node = message.metadata.dst_node_id
            asked = message.content.config_records[RECORD_KEY_CONFIGS]
            if node in self.dropped and asked[Key.STAGE] == Stage.COLLECT_MASKED_VECTORS:
                continue
            message.content = RecordDict({**message.content, RECORD_KEY_CONFIGS: ConfigRecord(dict(asked))})
            replies.append(client.secaggplus_mod(message, self.contexts[node], self.fits[node]))
        return replies


def run_case(parties, length, dropped=0, setting="every pair"):
    """Seconds of the protocol, and of all, for one sum of `parties` vectors `[length]`; ends where the sum is wrong."""
    rng = np.random.default_rng(parties)
    nodes = random.Random(parties).sample(range(1, 2**62), parties)
    steps = {node: rng.integers(0, STEPS, length, dtype=np.int32) for node in nodes}
    vectors = {node: ndarrays_to_parameters([(steps[node] * STEP - CLIP).astype(np.float32)]) for node in nodes}
    lost = set(nodes[:dropped])

    watch, strategy, clients = Stopwatch(), Strategy(), SimpleClientManager()
    for node in nodes:
        clients.register(Proxy(node))
    context = LegacyContext(Context(1, 0, {}, RecordDict(), {}), strategy=strategy, client_manager=clients)
    context.state.config_records[MAIN_CONFIGS_RECORD] = ConfigRecord({WorkflowKey.CURRENT_ROUND: 1})
    context.state.array_records[MAIN_PARAMS_RECORD] = ArrayRecord()
    strategy.parameters = Parameters([], "")
    strategy.aggregate_fit = watch.around(strategy.aggregate_fit)
    workflow, grid = server.SecAggPlusWorkflow(*SETTINGS[setting]), OneProcess(vectors, lost, watch)

    kept = [(module, name, getattr(module, name)) for module, names in OUTSIDE for name in names]
    for module, name, function in kept:
        setattr(module, name, watch.around(function))
    try:
        begun = time.perf_counter()
        workflow(grid, context)
        whole = time.perf_counter() - begun
    finally:
        for module, name, function in kept:
            setattr(module, name, function)

    survivors = [node for node in nodes if node not in lost]
    found = parameters_to_ndarrays(strategy.parameters)
    expected = sum(steps[node].astype(np.int64) for node in survivors)
    if not found or not np.array_equal(np.rint((found[0] + CLIP) * len(survivors) / STEP), expected):
        raise SystemExit(f"Flower's sum of {parties} parties, {dropped} dropped, {setting}, is not the sum")
    return {"seconds": whole - watch.seconds, "whole": whole}


def measured(parties, length, dropped, setting, repeats):
    """A case with the best and the median of its repeats."""
    runs = [run_case(parties, length, dropped, setting) for _ in range(repeats)]
    of = {name: sorted(run[name] for run in runs) for name in ("seconds", "whole")}
    return {
        "parties": parties,
        "length": length,
        "dropped": dropped,
        "setting": setting,
        "flwr": flwr.__version__,
        **{name: {"best": times[0], "median": statistics.median(times), "all": times} for name, times in of.items()},
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--setting", choices=SETTINGS, default="every pair")
    parser.add_argument("--repeats", type=int, default=REPEATS)
    parser.add_argument("--with-lines", action="store_true", help='cases from stdin: {"parties": 5, "length": 9}')
    arguments = parser.parse_args()
    run_case(8, 1000, 1, arguments.setting)
    if arguments.with_lines:
        for line in sys.stdin:
            print(json.dumps(run_case(**json.loads(line)) | {"flwr": flwr.__version__}), flush=True)
        return
    for case in CASES:
        print(json.dumps(measured(*case, arguments.setting, arguments.repeats)), flush=True)


if __name__ == "__main__":
    main()
