"""GSSAPI: Kerberos tickets (RFC 4752), with the package `gssapi` and the machine's Kerberos library.

The exchange has three parts: tokens until the security context stands; the broker's offer of security layers; our choice, which
is none, as Kafka offers no other. Making a token may ask a Kerberos server for a ticket: that is work for background.py, and
krb5.conf bounds it. Tickets come from the keytab of sasl.jaas.config, or from the ticket cache that something else keeps fresh.
"""

from __future__ import annotations

import importlib
from functools import partial
from typing import Any

from spark_kafka_sink.config import SecretBytes
from spark_kafka_sink.errors import AuthenticationError, ConfigError
from spark_kafka_sink.network.background import Background
from spark_kafka_sink.network.sasl.login import Exchange, illegal_challenge
from spark_kafka_sink.sasl_config import JaasEntry

_NO_LAYER = 1  # the bit of "no security layer" in offer and choice
_OFFER_BYTES = 4


def load_gssapi() -> Any:
    """Raises ConfigError when the package or the Kerberos library is missing."""
    try:
        return importlib.import_module("gssapi")
    except (ImportError, OSError) as error:  # OSError: the package is there, the system's library is not
        raise ConfigError(
            "sasl.mechanism=GSSAPI needs the package gssapi and a Kerberos library on the driver and all executors"
            " (Debian: apt install libkrb5-dev; pip install 'pykafka-sink[kerberos]')"
        ) from error


class GssapiLogin:
    mechanism = "GSSAPI"

    def __init__(self, service_name: str, entry: JaasEntry, gssapi: Any) -> None:
        self._service_name = service_name
        self._principal = entry.get("principal")
        self._keytab = entry.get("keyTab") if (entry.get("useKeyTab") or "").lower() == "true" else None
        self._gssapi = gssapi
        self.who = f"Kerberos principal '{self._principal}'" if self._principal else "the owner of the Kerberos ticket cache"

    def start(self, host: str) -> Exchange:
        context, token, stands = yield Background(partial(self._begin, host))
        challenge = yield token
        while not stands:
            token, stands = yield Background(partial(self._step, context, challenge))
            challenge = yield token
        choice = yield Background(partial(self._choose_layer, context, challenge))
        yield choice

    def _begin(self, host: str) -> tuple[Any, SecretBytes, bool]:
        gssapi = self._gssapi
        try:
            target = gssapi.Name(f"{self._service_name}@{host}", gssapi.NameType.hostbased_service)
            context = gssapi.SecurityContext(name=target, creds=self._credentials(), usage="initiate")
            return context, SecretBytes(context.step(None) or b""), bool(context.complete)
        except gssapi.exceptions.GSSError as error:
            problem = str(error)
        raise self._failed(f"no Kerberos ticket for {self._service_name}@{host}: {problem}")

    def _credentials(self) -> Any:
        """None: the default ones of the Kerberos library."""
        gssapi = self._gssapi
        if self._principal is None and self._keytab is None:
            return None
        name = None if self._principal is None else gssapi.Name(self._principal, gssapi.NameType.kerberos_principal)
        if self._keytab is None:
            return gssapi.Credentials(name=name, usage="initiate")
        return gssapi.Credentials(name=name, usage="initiate", store={"client_keytab": self._keytab})

    def _step(self, context: Any, challenge: bytes) -> tuple[SecretBytes, bool]:
        """The next token, and whether the context stands: asking for that raises what went wrong in a step that had a token."""
        try:
            return SecretBytes(context.step(challenge) or b""), bool(context.complete)
        except self._gssapi.exceptions.GSSError as error:
            problem = str(error)
        raise self._failed(problem)

    def _choose_layer(self, context: Any, challenge: bytes) -> SecretBytes:
        """No layer, no buffer (RFC 4752, 3.1), and whom we want to be: ourselves."""
        try:
            offer = context.unwrap(challenge).message
            if len(offer) == _OFFER_BYTES and offer[0] & _NO_LAYER:
                who = str(context.initiator_name).encode()
                return SecretBytes(context.wrap(bytes([_NO_LAYER, 0, 0, 0]) + who, False).message)
        except self._gssapi.exceptions.GSSError as error:
            failure = self._failed(str(error))
        else:
            failure = illegal_challenge("it does not offer to go on without a GSSAPI security layer")
        raise failure

    def _failed(self, text: str) -> AuthenticationError:
        return AuthenticationError(f"Kerberos: {text}", condition="KAFKA_LOGIN_FAILED")
