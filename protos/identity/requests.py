"""The keys of an end and its certificate request: two certificate signing requests in one file."""

from dataclasses import dataclass

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePrivateKey, EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.ec import generate_private_key as generate_ec_key
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.x509.oid import NameOID

from protos.identity.certificates import UNREADABLE, IdentityError, Role, check_name, fingerprint, pem_blocks


@dataclass(frozen=True, slots=True)
class Request:
    """The content of an end's certificate request: its name and its two public keys."""

    name: str
    transport: EllipticCurvePublicKey
    signing: Ed25519PublicKey

    @property
    def fingerprint(self) -> str:
        """The signing key's fingerprint, which two people compare."""
        return fingerprint(self.signing)


def new_keys() -> tuple[EllipticCurvePrivateKey, Ed25519PrivateKey]:
    """Fresh keys of an end: one for transport, one for signing."""
    return generate_ec_key(SECP256R1()), Ed25519PrivateKey.generate()


def make_request(name: str, transport_key: EllipticCurvePrivateKey, signing_key: Ed25519PrivateKey) -> bytes:
    """Two certificate signing requests (PKCS 10, PEM), for transport and for signing, each signed by its own key."""
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    builder = x509.CertificateSigningRequestBuilder().subject_name(subject)
    requests = (builder.sign(transport_key, hashes.SHA256()), builder.sign(signing_key, None))
    return b"".join(each.public_bytes(serialization.Encoding.PEM) for each in requests)


def read_request(pem: bytes) -> Request:
    """The content of a request. Raises `IdentityError` unless it is complete and its maker holds both keys."""
    try:
        requests = [x509.load_pem_x509_csr(each) for each in pem_blocks(pem, "CERTIFICATE REQUEST")]
        whole = len(requests) == 2 and all(each.is_signature_valid for each in requests)
        keys = [each.public_key() for each in requests]
        names = {_common_name(each.subject) for each in requests}
    except UNREADABLE:
        whole, keys, names = False, [], set()
    if not whole:
        raise IdentityError(
            "this is not a whole request: two certificate requests, each signed by the key that it names, were "
            "expected. Make it again with `party enroll`."
        )
    transport, signing = keys
    name = names.pop()
    if names or not isinstance(signing, Ed25519PublicKey) or not _is_p256(transport):
        raise IdentityError(
            "the request's two halves do not belong together: one name, an ECDSA P-256 key and then an Ed25519 key "
            "were expected. Make it again with `party enroll`."
        )
    assert isinstance(transport, EllipticCurvePublicKey)
    check_name(name, Role.PARTY)
    return Request(name, transport, signing)


def key_pem(*keys: EllipticCurvePrivateKey | Ed25519PrivateKey) -> bytes:
    """Private keys as PKCS 8, PEM: an end's key file holds the transport key, then the signing key."""
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return b"".join(each.private_bytes(*form) for each in keys)


def read_keys(pem: bytes, where: str) -> tuple[EllipticCurvePrivateKey, Ed25519PrivateKey]:
    """The transport key and the signing key in a key file. Raises `IdentityError`, which names the file as `where`."""
    try:
        keys = [serialization.load_pem_private_key(each, password=None) for each in pem_blocks(pem, "PRIVATE KEY")]
    except UNREADABLE:
        keys = []
    match keys:
        case [EllipticCurvePrivateKey() as transport, Ed25519PrivateKey() as signing] if _is_p256(
            transport.public_key()
        ):
            return transport, signing
    raise IdentityError(
        f"{where} does not hold a transport key (ECDSA P-256) and a signing key (Ed25519). Use the file that "
        "`party enroll` or `coordinator provision` wrote, whole."
    )


def _common_name(subject: x509.Name) -> str:
    (attribute,) = subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(attribute.value)


def _is_p256(key: object) -> bool:
    return isinstance(key, EllipticCurvePublicKey) and isinstance(key.curve, SECP256R1)
