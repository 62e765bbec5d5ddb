"""OAuth tokens that do not come from a token endpoint: created here, or from a Python function, a file, AWS's signer.

Each source is a function without arguments (factory.py binds them) that returns a token and may block. It raises
AuthenticationError; a user's function may raise anything. Sources run on threads of background.py. token_endpoint.py is one more.
"""

from __future__ import annotations

import base64
import contextlib
import importlib
import json
import math
import os
import re
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import unquote, urlsplit

from spark_kafka_sink.clock import Clock
from spark_kafka_sink.config.dotted_names import load_callable
from spark_kafka_sink.config.jaas import JaasEntry
from spark_kafka_sink.config.producer_config import ProducerConfig
from spark_kafka_sink.config.secret import Secret, SecretBytes
from spark_kafka_sink.errors import ConfigError, KafkaError, describe_error
from spark_kafka_sink.network.sasl.tokens import OAuthBearerToken, token_error, token_from_jwt

Source = Callable[[], OAuthBearerToken]

MAX_TOKEN_BYTES = 1 << 20

# UNSECURED TOKENS, FOR TESTS OF BROKERS


def unsecured_token(entry: JaasEntry, clock: Clock) -> OAuthBearerToken:
    """An unsigned JWT from the unsecuredLogin* options of the login module, as Kafka's unsecured handler creates it."""
    principal_claim = entry.get("unsecuredLoginPrincipalClaimName") or "sub"
    claims = unsecured_claims(entry, clock.wall_ms() / 1000)
    if not claims.get(principal_claim):
        raise token_error(f"sasl.jaas.config sets no unsecuredLoginStringClaim_{principal_claim}, which names the user")
    token = Secret(f"{_encode_jwt_part({'alg': 'none'})}.{_encode_jwt_part(claims)}.")
    return token_from_jwt(token, sub_claim=principal_claim, extensions=entry.with_prefix("unsecuredLoginExtension_"))


def unsecured_claims(entry: JaasEntry, now_s: float) -> dict[str, object]:
    """The claims that the options set. Raises AuthenticationError if a number is malformed, or a claim must not be set."""
    claims: dict[str, object] = {"iat": now_s, "exp": now_s + _parse_number(entry.get("unsecuredLoginLifetimeSeconds") or "3600")}
    converters: dict[str, Callable[[str], object]] = {"String": str, "Number": _parse_number, "List": _split_list}
    for kind, convert in converters.items():
        for name, value in entry.with_prefix(f"unsecuredLogin{kind}Claim_").items():
            if name in ("iat", "exp"):
                raise token_error(f"sasl.jaas.config must not set the claim {name}")
            claims[name] = convert(value)
    return claims


def _parse_number(text: str) -> float:
    with contextlib.suppress(ValueError):
        if math.isfinite(number := float(text)):  # JSON has neither nan nor inf
            return number
    raise token_error("an unsecuredLogin… option of sasl.jaas.config must be a number, and is not")


def _split_list(text: str) -> list[str]:
    """The first character separates the rest: `|a|b`."""
    return text[1:].split(text[0]) if len(text) > 1 else []


def _encode_jwt_part(claims: Mapping[str, object]) -> str:
    return base64.urlsafe_b64encode(json.dumps(claims).encode()).rstrip(b"=").decode()


# A PYTHON FUNCTION


def find_callback(name: str) -> Callable[[Mapping[str, str]], Any]:
    """Import the function of sasl.login.callback.handler.class, named as `package.module.function` or `package.module:function`.

    Raises:
        ConfigError: it cannot be imported here, or cannot be called.
    """
    return load_callable("sasl.login.callback.handler.class", name.replace(":", "."))


def token_of_callback(callback: Callable[[Mapping[str, str]], Any], entry: JaasEntry) -> OAuthBearerToken:
    """Call the function with the login module's options.

    It returns the token as str (a JWT contains its expiry), or (token, expiry in seconds since 1970), or an OAuthBearerToken.
    If it raises, the login fails; the text of the exception is shown, so it must not contain a secret.
    """
    result = _HiddenResult(callback(entry.with_prefix("")))
    extensions = entry.with_prefix("extension_")
    if isinstance(result.value, OAuthBearerToken):
        return result.value
    if isinstance(result.value, str):
        return token_from_jwt(Secret(result.value), extensions=extensions)
    if result.is_pair():
        token = token_from_jwt(Secret(result.value[0]), extensions=extensions)
        return OAuthBearerToken(token.value, int(result.value[1] * 1000), token.principal_name, None, extensions)
    raise token_error(
        f"the token callback returned a {type(result.value).__name__}; it must return a str, (str, expiry in seconds since"
        " 1970) or OAuthBearerToken"
    )


class _HiddenResult:
    """Hides what a callback returned from tracebacks."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def is_pair(self) -> bool:
        value = self.value
        return (
            isinstance(value, tuple | list)
            and len(value) == 2
            and isinstance(value[0], str)
            and isinstance(value[1], int | float)
            and 0 <= value[1] < 1e12
        )


# A FILE


def token_in_file(url: str, sub_claim: str) -> OAuthBearerToken:
    """The token in a file:///… that another program renews; read again whenever a token is needed."""
    return token_from_jwt(
        read_secret_file(unquote(urlsplit(url).path), "sasl.oauthbearer.token.endpoint.url"), sub_claim=sub_claim
    )


def read_secret_file(path: str, option: str) -> Secret:
    """A file's text, trimmed. Raises AuthenticationError when it cannot be read, is empty or too large."""
    try:
        with open(path, "rb") as file:  # the size is not checked before: that of /dev/zero is 0
            content = SecretBytes(file.read(MAX_TOKEN_BYTES + 1))
        if len(content) > MAX_TOKEN_BYTES:
            raise token_error(f"{option}: {path} is larger than {MAX_TOKEN_BYTES} bytes")
        text = Secret(content.decode("utf-8-sig").strip())
    except UnicodeDecodeError:
        problem = "it is not text"
    except OSError as error:
        problem = error.strerror or str(error)
    else:
        if text.reveal():
            return text
        problem = "it is empty"
    raise token_error(f"{option}: {path} cannot be read: {problem}")


# AWS MSK WITH IAM

_AWS_HOST = re.compile(r"\.kafka(?:-serverless)?\.(?P<region>[a-z]{2}(?:-[a-z]+)+-[0-9]+)\.amazonaws\.com(?:\.cn)?$")


def aws_region(config: ProducerConfig, environment: Mapping[str, str]) -> str | None:
    """The cluster's region: from its host names, else from AWS_REGION or AWS_DEFAULT_REGION."""
    host_match = next((match for host, _ in config.bootstrap_servers if (match := _AWS_HOST.search(host))), None)
    return host_match["region"] if host_match else environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION")


def aws_source(config: ProducerConfig, entry: JaasEntry) -> Source:
    """Tokens of AWS's official signer, for the mechanism that MSK offers to clients other than Java.

    Raises:
        ConfigError: the signer is not installed, or the region is not known.
    """
    try:
        signer = importlib.import_module("aws_msk_iam_sasl_signer.MSKAuthTokenProvider")
    except ImportError as error:
        raise ConfigError(
            "sasl.mechanism=AWS_MSK_IAM needs the package aws-msk-iam-sasl-signer-python on the driver and all executors:"
            " pip install aws-msk-iam-sasl-signer-python"
        ) from error
    region = aws_region(config, os.environ)
    if region is None:
        raise ConfigError("the AWS region is not known: it is not in bootstrap.servers, and AWS_REGION is not set")
    return lambda: _aws_token(signer, region, entry)


def _aws_token(signer: Any, region: str, entry: JaasEntry) -> OAuthBearerToken:
    must_log_credentials = entry.is_true("awsDebugCreds")
    profile, role = entry.get("awsProfileName"), entry.get("awsRoleArn")
    try:
        if role:
            session = entry.get("awsRoleSessionName") or "pykafka-sink"
            result = _HiddenResult(signer.generate_auth_token_from_role_arn(region, role, session))
        elif profile:
            result = _HiddenResult(signer.generate_auth_token_from_profile(region, profile))
        else:
            result = _HiddenResult(signer.generate_auth_token(region, aws_debug_creds=must_log_credentials))
        return OAuthBearerToken(Secret(result.value[0]), int(result.value[1]), role or profile)
    except KafkaError:
        raise
    except Exception as error:  # noqa: BLE001 - botocore's errors have no common base here
        problem = describe_error(error)
    raise token_error(f"AWS gave no token for region {region}: {problem}")
