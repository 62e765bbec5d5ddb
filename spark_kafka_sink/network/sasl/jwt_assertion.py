"""The assertion of the JWT bearer flow (RFC 7523, KIP-1139): read from a file, or signed here with the user's private key.

RS256 and ES256 (RFC 7518) with the package `cryptography`, which is optional. Blocks only to read files.
"""

from __future__ import annotations

import base64
import json
import uuid
from typing import Any

from spark_kafka_sink.clock import Clock
from spark_kafka_sink.config.producer_config import ProducerConfig
from spark_kafka_sink.config.secret import Secret, SecretBytes
from spark_kafka_sink.errors import ConfigError, printable
from spark_kafka_sink.network.sasl.token_sources import read_secret_file
from spark_kafka_sink.network.sasl.tokens import token_error

KEY_FILE = "sasl.oauthbearer.assertion.private.key.file"


def assertion_of(config: ProducerConfig, clock: Clock) -> Secret:
    """The assertion in sasl.oauthbearer.assertion.file, or one that is signed here. Raises AuthenticationError."""
    if config.sasl_oauthbearer_assertion_file is not None:
        return read_secret_file(config.sasl_oauthbearer_assertion_file, "sasl.oauthbearer.assertion.file")
    key = read_secret_file(config.sasl_oauthbearer_assertion_private_key_file or "", KEY_FILE)
    header, claims = _template(config)
    header = {"alg": config.sasl_oauthbearer_assertion_algorithm, "typ": "JWT"} | header
    claims = claims | assertion_claims(config, clock.wall_ms() // 1000)
    signing_input = SecretBytes(b"%b.%b" % (_base64url(json.dumps(header).encode()), _base64url(json.dumps(claims).encode())))
    signature = _sign(signing_input, key, config.sasl_oauthbearer_assertion_private_key_passphrase, header["alg"])
    return Secret(f"{signing_input.decode()}.{_base64url(signature).decode()}")


def assertion_claims(config: ProducerConfig, now_s: int) -> dict[str, object]:
    """The claims of the sasl.oauthbearer.assertion.claim.* options."""
    claims: dict[str, object] = {
        "iat": now_s,
        "exp": now_s + config.sasl_oauthbearer_assertion_claim_exp_seconds,
        "nbf": now_s - config.sasl_oauthbearer_assertion_claim_nbf_seconds,
        "aud": config.sasl_oauthbearer_assertion_claim_aud,
        "iss": config.sasl_oauthbearer_assertion_claim_iss,
        "sub": config.sasl_oauthbearer_assertion_claim_sub,
        "jti": str(uuid.uuid4()) if config.sasl_oauthbearer_assertion_claim_jti_include else None,
    }
    return {name: value for name, value in claims.items() if value is not None}


def _template(config: ProducerConfig) -> tuple[dict[str, Any], dict[str, Any]]:
    """`header` and `payload` of sasl.oauthbearer.assertion.template.file."""
    if config.sasl_oauthbearer_assertion_template_file is None:
        return {}, {}
    option = "sasl.oauthbearer.assertion.template.file"
    text = read_secret_file(config.sasl_oauthbearer_assertion_template_file, option)
    try:
        template = json.loads(text.reveal())
    except (ValueError, RecursionError):
        template = None
    if not isinstance(template, dict) or not all(isinstance(template.get(part, {}), dict) for part in ("header", "payload")):
        raise token_error(f'{option} must hold JSON like {{"header": {{…}}, "payload": {{…}}}}')
    return template.get("header", {}), template.get("payload", {})


def require_cryptography() -> None:
    """Raises ConfigError when assertions cannot be signed here."""
    try:
        import cryptography  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            f"{KEY_FILE} needs the package cryptography on the driver and all executors:"
            " pip install cryptography; or sign elsewhere and set sasl.oauthbearer.assertion.file"
        ) from error


def _sign(signing_input: SecretBytes, key: Secret, passphrase: Secret | None, algorithm: str) -> SecretBytes:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
    from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    private_key: Any = None
    try:
        private_key = load_pem_private_key(key.reveal().encode(), None if passphrase is None else passphrase.reveal().encode())
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        problem = str(error)
    if private_key is None:
        raise token_error(f"{KEY_FILE} cannot be used: {printable(problem)}")
    if algorithm == "RS256" and isinstance(private_key, rsa.RSAPrivateKey):
        return SecretBytes(private_key.sign(signing_input, padding.PKCS1v15(), SHA256()))
    if algorithm == "ES256" and isinstance(private_key, ec.EllipticCurvePrivateKey) and private_key.curve.name == "secp256r1":
        signature_r, signature_s = decode_dss_signature(private_key.sign(signing_input, ec.ECDSA(SHA256())))
        return SecretBytes(signature_r.to_bytes(32, "big") + signature_s.to_bytes(32, "big"))
    raise token_error(f"the key of {KEY_FILE} does not fit sasl.oauthbearer.assertion.algorithm={algorithm}")


def _base64url(value: bytes) -> SecretBytes:
    return SecretBytes(base64.urlsafe_b64encode(value).rstrip(b"="))
