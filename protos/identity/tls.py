"""Mutual TLS between a coordinator and a party: gRPC credentials from an identity, and the certificate of the other
end.

Both ends trust only their federation's authority. A party's certificate must carry that party's host name
(`certificates.party_host`) whatever the address is. gRPC checks no revocation list, so a party checks its caller's
certificate, and a coordinator that of a party's signer, with `validity.check_certificate`.
"""

from typing import Any

import grpc
from cryptography import x509

from protos.identity.certificates import SERVER_HOST, party_host, pem_of
from protos.identity.identity import Identity


def server_credentials(identity: Identity) -> grpc.ServerCredentials:
    """Credentials of a party's server, which accepts only connections with a certificate of its authority."""
    return grpc.ssl_server_credentials(
        [(identity.transport_key, pem_of(identity.transport))],
        root_certificates=pem_of(identity.authority),
        require_client_auth=True,
    )


def channel_credentials(identity: Identity) -> grpc.ChannelCredentials:
    """Credentials of a coordinator's channel to a party; see `channel_options`."""
    return grpc.ssl_channel_credentials(
        root_certificates=pem_of(identity.authority),
        private_key=identity.transport_key,
        certificate_chain=pem_of(identity.transport),
    )


def server_options() -> tuple[tuple[str, str], ...]:
    """Channel options that make gRPC expect the certificate of a coordinator that stays up, whatever its address."""
    return (("grpc.ssl_target_name_override", SERVER_HOST), ("grpc.default_authority", SERVER_HOST))


def channel_options(party_name: str) -> tuple[tuple[str, str], ...]:
    """Channel options that make gRPC expect this party's host name in the certificate, instead of the address."""
    host = party_host(party_name)
    return (("grpc.ssl_target_name_override", host), ("grpc.default_authority", host))


def caller(context: grpc.aio.ServicerContext[Any, Any]) -> x509.Certificate | None:
    """The transport certificate of a call's caller; None where the connection is not over TLS.

    When the connection was made, TLS checked that the authority issued it and that the caller has its key; it did not
    check its role, whether it was revoked since, or whether it is still valid.
    """
    shown = context.auth_context().get("x509_pem_cert")
    return x509.load_pem_x509_certificate(next(iter(shown))) if shown else None
