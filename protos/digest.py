"""Digests that both ends compute and compare: of a plan, of a query batch, of an artefact.

Each is SHA-256 over a line naming what is hashed and then canonical JSON (sorted keys, no spaces, every field present).
So digests of different kinds never coincide, and they do not depend on a protobuf library's byte order.
"""

import hashlib
import json

from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message

from protos.conclave.v1 import party_pb2, plan_pb2


def canonical(message: Message) -> bytes:
    """The message as canonical JSON, UTF-8; a number that is not finite becomes its name in quotes."""
    fields = MessageToDict(message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)
    return json.dumps(fields, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def plan_hash(plan: plan_pb2.Plan) -> bytes:
    """The hash that a run is bound to: 32 bytes over the whole plan."""
    return hashlib.sha256(b"conclave plan 1\n" + canonical(plan)).digest()


def batch_digest(request: party_pb2.AnswerRequest) -> bytes:
    """The content of a batch number: 32 bytes over the request, without the digest field itself."""
    bare = party_pb2.AnswerRequest()
    bare.CopyFrom(request)
    bare.ClearField("digest")
    return hashlib.sha256(b"conclave batch 1\n" + canonical(bare)).digest()


def operation_digest(request: party_pb2.TrainRequest) -> bytes:
    """The content of an operation id: 32 bytes over the whole request."""
    return hashlib.sha256(b"conclave operation 1\n" + canonical(request)).digest()


def artefact_digest(content: bytes) -> bytes:
    """The name of an artefact: SHA-256 of its bytes, as any other tool computes it."""
    return hashlib.sha256(content).digest()
