"""Mutual TLS between a coordinator and a party: gRPC credentials from an identity, and who is at the other end.

Both ends trust their federation's authority alone. A party's certificate must carry that party's host name
(`certificates.party_host`) whatever the address is. gRPC looks at no revocation list: a party checks its caller's
certificate, and a coordinator the certificate of what a party signs, by `validity.check_certificate`.
"""

from typing import Any

import grpc
from cryptography import x509

from protos.identity.certificates import party_host, pem_of
from protos.identity.identity import Identity


def server_credentials(identity: Identity) -> grpc.ServerCredentials:
    """Of a party's server: it takes no connection without a certificate of its authority."""
    return grpc.ssl_server_credentials(
        [(identity.transport_key, pem_of(identity.transport))],
        root_certificates=pem_of(identity.authority),
        require_client_auth=True,
    )


def channel_credentials(identity: Identity) -> grpc.ChannelCredentials:
    """Of a coordinator's channel to a party; see `channel_options`."""
    return grpc.ssl_channel_credentials(
        root_certificates=pem_of(identity.authority),
        private_key=identity.transport_key,
        certificate_chain=pem_of(identity.transport),
    )


def channel_options(party_name: str) -> tuple[tuple[str, str], ...]:
    """Without these, gRPC would look for the address in the certificate: with them, for this party's host name."""
    host = party_host(party_name)
    return (("grpc.ssl_target_name_override", host), ("grpc.default_authority", host))


def caller(context: grpc.aio.ServicerContext[Any, Any]) -> x509.Certificate | None:
    """The transport certificate of whoever makes a call; None where the connection is not over TLS.

    TLS has checked that the authority issued it and that the caller has its key, when the connection was made: not its
    role, nor whether it was revoked since, nor whether it is valid still.
    """
    shown = context.auth_context().get("x509_pem_cert")
    return x509.load_pem_x509_certificate(next(iter(shown))) if shown else None
