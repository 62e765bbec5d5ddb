"""GSSAPI: Kerberos tickets (RFC 4752), with the package `gssapi` and the machine's Kerberos library.

The exchange has three parts: tokens until the security context is established; the broker's offer of security layers; the
client's choice of "no layer", since Kafka offers nothing else. A step may request a ticket from a Kerberos server, so threads
of background.py make tokens; krb5.conf limits the time. Tickets come from the keytab of sasl.jaas.config or a ticket cache.
Law: with a keytab, tickets stay in this process's memory as in Java: the user's ticket cache is neither read nor written.
"""

from __future__ import annotations

import hashlib
import importlib
import os
from functools import partial
from typing import Any

from spark_kafka_sink.config.jaas import JaasEntry, kerberos_file
from spark_kafka_sink.config.secret import SecretBytes
from spark_kafka_sink.errors import AuthenticationError, ConfigError, printable
from spark_kafka_sink.network.sasl.login import Exchange, illegal_challenge, login_work

_NO_LAYER = 1  # the bit of "no security layer" in offer and choice
_OFFER_BYTES = 4


def load_gssapi() -> Any:
    """Import the package gssapi. Raises ConfigError if it or the Kerberos library is missing."""
    try:
        return importlib.import_module("gssapi")
    except (ImportError, OSError) as error:  # OSError: the package is there, the system's library is not
        raise ConfigError(
            "sasl.mechanism=GSSAPI needs the package gssapi and a Kerberos library on the driver and all executors"
            " (Debian: apt install libkrb5-dev; pip install gssapi)"
        ) from error


class GssapiLogin:
    """The client's side of a Kerberos login.

    Args:
        service_name: of the brokers, the first part of their principals.
        entry: principal, keytab or ticket cache, as in Java's Krb5LoginModule; empty for the Kerberos library's defaults.
        gssapi: the package.

    Raises:
        ConfigError: the keytab or the ticket cache cannot be read.
    """

    mechanism = "GSSAPI"

    def __init__(self, service_name: str, entry: JaasEntry, gssapi: Any) -> None:
        self._service_name = service_name
        self._principal = entry.get("principal")
        self._store = _credential_store(entry)
        self._gssapi = gssapi
        self.user_text = f"Kerberos principal '{self._principal}'" if self._principal else "the owner of the Kerberos tickets"

    def start(self, host: str) -> Exchange:
        context, token, is_established = yield login_work(partial(self._open_context, host))
        challenge = yield token
        while not is_established:
            token, is_established = yield login_work(partial(self._advance_context, context, challenge))
            challenge = yield token
        choice = yield login_work(partial(self._choose_layer, context, challenge))
        yield choice

    def _open_context(self, host: str) -> tuple[Any, SecretBytes, bool]:
        gssapi = self._gssapi
        try:
            target = gssapi.Name(f"{self._service_name}@{host}", gssapi.NameType.hostbased_service)
            context = gssapi.SecurityContext(
                name=target, creds=self._credentials(), mech=gssapi.MechType.kerberos, usage="initiate"
            )
            return context, SecretBytes(context.step(None) or b""), bool(context.complete)
        except gssapi.exceptions.GSSError as error:
            problem = self._error_text(error)
        raise self._login_error(f"no ticket for {self._service_name}@{printable(host)}: {problem}")

    def _credentials(self) -> Any:
        """None for the default credentials of the Kerberos library."""
        gssapi = self._gssapi
        if self._principal is None and not self._store:
            return None
        name = None if self._principal is None else gssapi.Name(self._principal, gssapi.NameType.kerberos_principal)
        store_option = {"store": self._store} if self._store else {}
        return gssapi.Credentials(name=name, mechs=[gssapi.MechType.kerberos], usage="initiate", **store_option)

    def _advance_context(self, context: Any, challenge: bytes) -> tuple[SecretBytes, bool]:
        """The next token, and whether the context is established. `complete` raises the error of a step with a token."""
        try:
            return SecretBytes(context.step(challenge) or b""), bool(context.complete)
        except self._gssapi.exceptions.GSSError as error:
            problem = self._error_text(error)
        raise self._login_error(problem)

    def _choose_layer(self, context: Any, challenge: bytes) -> SecretBytes:
        """No layer, no buffer (RFC 4752, 3.1), and the authorization identity: the initiator itself."""
        try:
            offer = context.unwrap(challenge).message
            if len(offer) == _OFFER_BYTES and offer[0] & _NO_LAYER:
                identity = str(context.initiator_name).encode()
                return SecretBytes(context.wrap(bytes([_NO_LAYER, 0, 0, 0]) + identity, False).message)
        except self._gssapi.exceptions.GSSError as error:
            failure = self._login_error(self._error_text(error))
        else:
            failure = illegal_challenge("it does not offer to continue without a GSSAPI security layer")
        raise failure

    def _error_text(self, error: Any) -> str:
        """The Kerberos library's message and a remedy. The library keeps messages per thread, so call it on the same thread."""
        code = int(error.min_code) & 0xFFFF_FFFF
        message = ", ".join(error.get_all_statuses(error.min_code, False)) if code else str(error)
        if code in _NO_TICKETS:  # also when the keytab lacks the principal's key
            remedy = _REMEDIES[_NO_KEY] if "client_keytab" in self._store else _GET_TICKETS
        else:
            remedy = _REMEDIES.get(code, "")
        message = printable(message)
        return f"{message}; {remedy}" if remedy else message

    def _login_error(self, text: str) -> AuthenticationError:
        return AuthenticationError(f"Kerberos: {text}", condition="KAFKA_LOGIN_FAILED")


# WHERE TICKETS COME FROM


def _credential_store(entry: JaasEntry) -> dict[str, str]:
    """The Kerberos library's store options; empty for its defaults. A keytab takes precedence over a ticket cache."""
    keytab, cache = entry.get("keyTab"), entry.get("ticketCache")
    if keytab and entry.is_true("useKeyTab"):
        path = _check_readable("keyTab", keytab)
        # One cache for all producers of this process with this keytab and principal: the library never removes a cache.
        owner = hashlib.sha256(f"{os.path.abspath(path)}\0{entry.get('principal')}".encode()).hexdigest()[:16]
        return {"client_keytab": path, "ccache": f"MEMORY:pykafka-sink-{owner}"}
    if cache and entry.is_true("useTicketCache"):
        return {"ccache": _check_readable("ticketCache", cache)}
    return {}


def _check_readable(option: str, name: str) -> str:
    path = kerberos_file(name)
    if path is None:
        return name
    try:
        with open(path, "rb"):
            return path
    except OSError as error:
        directory_hint = "" if os.path.isabs(path) else f" in the working directory {os.getcwd()}"
        problem = f"{error.strerror or error}{directory_hint}"
    raise ConfigError(f"sasl.jaas.config: {option}={path} cannot be read: {problem}")


# KERBEROS ERRORS

_KRB5 = 0x96C73A00  # the first code of krb5.h as GSSAPI returns them; code 7 of RFC 4120 is this + 7
_NO_TICKETS, _NO_KEY = (_KRB5 + 141, _KRB5 + 195), _KRB5 + 181
_REMEDIES = {
    _KRB5 + 6: "is the principal in sasl.jaas.config right, with its realm?",
    _KRB5 + 7: "is there a principal SERVICE/HOST for this broker, with sasl.kerberos.service.name and the host as it is"
    " advertised? client.dns.lookup=resolve_canonical_bootstrap_servers_only helps with aliases",
    _KRB5 + 18: "the principal is locked or expired",
    _KRB5 + 23: "the principal's password has expired",
    _KRB5 + 24: "the keytab holds a wrong or old key of the principal: export it again",
    _KRB5 + 31: "the keytab holds a wrong or old key of the principal: export it again",
    _KRB5 + 32: "renew the tickets (kinit), or give keyTab and principal in sasl.jaas.config",
    _KRB5 + 37: "set the clocks of this machine and of the Kerberos server",
    _KRB5 + 154: "name its servers in krb5.conf (KRB5_CONFIG), on the driver and all executors",
    _KRB5 + 156: "is it up, and is krb5.conf (KRB5_CONFIG) right, on the driver and all executors?",
    _NO_KEY: "the keytab holds no key of the principal in sasl.jaas.config",
}
_GET_TICKETS = "get tickets (kinit), or give keyTab and principal in sasl.jaas.config"
