"""TLS over a non-blocking socket: a Transport that encrypts, and explains why a handshake failed.

A TlsConnector opens the connections of one client; ssl_context.py makes their context. Only Selector sends and receives;
Selector sees no difference to plain TCP: a TLS handshake is an unfinished connect.
Laws: before the broker's certificate is checked, the client sends only a TLS handshake, or a _PROBE instead of it. A peer that
was accepted stays accepted, since there is no renegotiation. A caller's buffers are released when they are written or the
connection is closed.

Why an SSLSocket and not an SSLObject between two memory buffers: it is as fast (both encrypt one record of 16 KiB per call).
Bytes that have arrived stay in the kernel until they are read, so that select() sees all that can be read.
"""

from __future__ import annotations

import contextlib
import copy
import logging
import selectors
import socket
import ssl
import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING

from spark_kafka_sink.config.security_config import file_stamp
from spark_kafka_sink.errors import AuthenticationError, ConfigError, fresh_copy, printable
from spark_kafka_sink.network.tls.peer import TlsPeer, tls_peer
from spark_kafka_sink.network.tls.ssl_context import allowed_ciphers, client_context, describe_trust
from spark_kafka_sink.network.transport import Address, Transport, first_bytes
from spark_kafka_sink.protocol.primitives import Buffer

if TYPE_CHECKING:
    from spark_kafka_sink.config.producer_config import ProducerConfig

logger = logging.getLogger(__name__)

MAX_TLS_RECORD_BYTES = 16 * 1024  # that one record carries
MAX_TLS_WRITE_BYTES = 8 * MAX_TLS_RECORD_BYTES  # of small buffers that are joined for encryption: full records, little memory
TLS_CONDITION = "KAFKA_SSL_AUTHENTICATION_FAILED"

# Sent unencrypted to find out whether a listener uses TLS: ApiVersions v0 without a client id, and the beginning of its answer.
# It reveals only that a Kafka client sends it.
_PROBE = struct.pack(">ihhih", 10, 18, 0, 1, -1)
_PROBE_ANSWER = struct.Struct(">ii")  # size, correlation id
_MAX_PROBE_ANSWER_BYTES = 64 * 1024


class TlsConnector:
    """Opens TLS transports for a client. NetworkClient's thread only.

    A producer may outlive its certificates: files that were renewed in place are read again when the next connection is opened.
    If they cannot be read then, perhaps because they are being written, the certificates read before stay in use.

    Raises:
        ConfigError: a file cannot be read, a password is wrong, a key is missing; names the option, never a secret.
    """

    def __init__(self, config: ProducerConfig) -> None:
        self.config = config
        self._used_stamps = _stamps(config)  # taken before the files are read, so that a change meanwhile is noticed
        self._unusable_stamps: tuple[object, ...] = ()  # the stamps of files that were logged as unreadable
        self.context = client_context(config)
        self.allowed_ciphers = allowed_ciphers(config)
        self.silent_addresses: set[Address] = set()  # they closed the connection at the first TLS message; probed next time
        self._trust_text = describe_trust(config)
        self._has_certificate = bool(config.ssl_keystore_location or config.ssl_keystore_key)

    def __call__(self, address: Address) -> TlsTransport:
        stamps = _stamps(self.config)
        if stamps not in (self._used_stamps, self._unusable_stamps):
            self._read_again(stamps)
        return TlsTransport(address, self)

    def _read_again(self, stamps: tuple[object, ...]) -> None:
        try:
            self.context = client_context(self.config)
        except ConfigError as error:
            logger.warning("! certificate files have changed, but %s; the certificates read before stay in use", error.message)
            self._unusable_stamps = stamps
        else:
            logger.info("= certificate files have changed: new connections use them")
            self._used_stamps = stamps

    def accepting_any_certificate(self) -> TlsConnector:
        """A connector that accepts every certificate and shows none of its own, to look at a certificate that was not accepted.

        Nothing must be sent on its connections: close them after the handshake.
        """
        connector = copy.copy(self)
        connector.context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        connector.context.check_hostname = False
        connector.context.verify_mode = ssl.CERT_NONE
        connector.allowed_ciphers = frozenset()
        connector.silent_addresses = set()
        return connector

    def explain(self, error: ssl.SSLError, host: str, *, is_first_answer: bool) -> str:
        """What failed, and what to do about it. `is_first_answer`: the broker cannot have asked for a certificate yet."""
        if isinstance(error, ssl.SSLCertVerificationError):
            problem = printable(error.verify_message)
            return f"the broker's certificate was not accepted: {problem}{self._verification_remedy(error, host)}"
        reason = _reason(error)
        remedy = next((text for part, text in _REMEDIES if part in reason), "")
        is_certificate_missing = not self._has_certificate and any(part in reason for part in _MISSING_CERTIFICATE_ALERTS)
        if is_first_answer and "ALERT_HANDSHAKE_FAILURE" in reason:
            remedy = _NOTHING_IN_COMMON_REMEDY
        elif is_certificate_missing:
            remedy = (
                "; the broker probably demands a client certificate: set ssl.keystore.location, or ssl.keystore.key and"
                " ssl.keystore.certificate.chain"
            )
        return f"the TLS handshake failed: {reason.lower().replace('_', ' ')}{remedy}"

    def _verification_remedy(self, error: ssl.SSLCertVerificationError, host: str) -> str:
        if error.verify_code in _WRONG_HOST_CODES:
            return (
                f"; connect to a name in the certificate instead of {printable(host)} (bootstrap.servers, or the brokers'"
                " advertised.listeners). An empty ssl.endpoint.identification.algorithm disables this check"
            )
        if error.verify_code in _UNKNOWN_ISSUER_CODES:
            return f"; its issuer is not in {self._trust_text}: add its certificate authority"
        return ""


def _stamps(config: ProducerConfig) -> tuple[object, ...]:
    return tuple(name and file_stamp(name) for name in (config.ssl_keystore_location, config.ssl_truststore_location))


class TlsTransport(Transport):
    """A TCP socket that speaks TLS once it is connected. Made by a TlsConnector."""

    def __init__(self, address: Address, connector: TlsConnector) -> None:
        config = connector.config
        super().__init__(address, send_buffer_bytes=config.send_buffer_bytes, receive_buffer_bytes=config.receive_buffer_bytes)
        self._connector = connector
        self._address = address
        self._tls: ssl.SSLSocket | None = None  # the same file descriptor, once it is connected
        self._events = selectors.EVENT_WRITE
        self._is_established = False
        self._has_received = False  # anything beyond the handshake
        self._round_count = 0  # how often the client has waited for the broker in the handshake
        self._unsent: memoryview | None = None  # bytes that OpenSSL has begun to write: it must get them again
        self._failure: OSError | AuthenticationError | None = None  # for the next call to raise: the bytes before it come first
        self._probe = _Probe(self._socket) if address in connector.silent_addresses else None
        connector.silent_addresses.discard(address)

    @property
    def is_reached(self) -> bool:
        """Whether the TCP connection is established."""
        return self._tls is not None

    def peer(self) -> TlsPeer | None:
        """Version, cipher suite and certificates; None before the handshake has ended."""
        return tls_peer(self._tls) if self._tls is not None and self._is_established else None

    # THE HANDSHAKE

    def connect_events(self) -> int:
        return self._events

    def finish_connect(self) -> bool:
        if self._tls is None:
            super().finish_connect()
            if self._probe is not None:
                self._events = selectors.EVENT_READ
                self._probe.advance()
                return False
            self._tls = self._socket = self._wrap_socket()
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self._round_count += 1
            self._events = selectors.EVENT_READ
            return False
        except ssl.SSLWantWriteError:
            self._events = selectors.EVENT_WRITE
            return False
        except OSError as error:
            raise self._handshake_failure(error) from error
        self._check_cipher(self._tls)
        self._is_established = True
        return True

    def _wrap_socket(self) -> ssl.SSLSocket:
        host = self._address.host or str(self._address.socket_address[0])
        name = host.partition("%")[0].rstrip(".")  # certificates contain neither a scope nor the root's dot
        try:
            return self._connector.context.wrap_socket(self._socket, server_hostname=name, do_handshake_on_connect=False)
        except ValueError as error:
            raise OSError(f"'{printable(host)}' cannot be a name in a certificate: {printable(error)}") from error

    def _handshake_failure(self, error: OSError) -> OSError | AuthenticationError:
        if isinstance(error, ssl.SSLError) and not _is_end_of_connection(error):
            return self._authentication_error(error)
        if self._round_count <= 1:
            self._connector.silent_addresses.add(self._address)
        return OSError(f"the broker closed the connection during the TLS handshake ({_describe_end(error)})")

    def _authentication_error(self, error: ssl.SSLError) -> AuthenticationError:
        host = self._address.host or str(self._address)
        is_first_answer = isinstance(self._tls, ssl.SSLSocket) and self._tls.cipher() is None
        explanation = self._connector.explain(error, host, is_first_answer=is_first_answer)
        return AuthenticationError(explanation, condition=TLS_CONDITION)

    def _check_cipher(self, tls: ssl.SSLSocket) -> None:
        """Python cannot disable single suites of TLS 1.3: one that is not allowed is rejected after the broker has chosen it."""
        cipher, allowed_ciphers = tls.cipher(), self._connector.allowed_ciphers
        if allowed_ciphers and cipher is not None and cipher[0] not in allowed_ciphers:
            raise AuthenticationError(
                f"the broker chose the cipher suite {cipher[0]}, which ssl.cipher.suites does not name; add it, or allow"
                " TLSv1.2 only (ssl.enabled.protocols), where every suite can be disabled",
                condition=TLS_CONDITION,
            )

    # BYTES

    def send(self, buffers: Sequence[Buffer]) -> int:
        assert self._tls is not None
        self._raise_failure()
        unsent = self._unsent or first_bytes(buffers, MAX_TLS_WRITE_BYTES)
        written_bytes = 0
        try:
            while unsent:
                byte_count = self._tls.send(unsent)
                written_bytes += byte_count
                unsent = unsent[byte_count:]
        except (ssl.SSLWantWriteError, ssl.SSLWantReadError):
            self._unsent = unsent
            return written_bytes
        except ssl.SSLError as error:
            raise self._broken_error(error) from error
        self._unsent = None
        return written_bytes

    def receive_into(self, buffer: memoryview) -> int | None:
        """As in Transport. `buffer` must have room for a record, so that select() sees all unread bytes."""
        assert self._tls is not None
        self._raise_failure()
        filled_bytes = 0
        try:
            while filled_bytes == 0 or len(buffer) - filled_bytes >= MAX_TLS_RECORD_BYTES:
                byte_count = self._tls.recv_into(buffer[filled_bytes:])
                if byte_count == 0:
                    return filled_bytes
                self._has_received = True
                filled_bytes += byte_count
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return filled_bytes or None
        except BrokenPipeError:  # OpenSSL 3.6 replies to the end of the stream, and the broker has gone already
            return filled_bytes
        except OSError as error:
            failure = self._broken_error(error) if isinstance(error, ssl.SSLError) else error
            if not filled_bytes:
                raise failure from error
            self._failure = failure
        return filled_bytes

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise fresh_copy(self._failure)

    def _broken_error(self, error: ssl.SSLError) -> OSError | AuthenticationError:
        """With TLS 1.3 the broker may reject the client's certificate after the client has completed the handshake."""
        if not self._has_received and "ALERT" in _reason(error) and not _is_end_of_connection(error):
            return self._authentication_error(error)
        return OSError(f"the TLS connection broke: {_reason(error).lower().replace('_', ' ')}")

    def close(self) -> None:
        self._unsent = None
        if self._tls is not None and self._is_established:
            # Announce the end; do not wait for the broker's reply: it may have closed the connection already.
            with contextlib.suppress(OSError, ValueError):
                self._tls.unwrap()
        super().close()


class _Probe:
    """Asks a listener that closed the connection at the first TLS message whether it understands an unencrypted request.

    A Kafka listener without TLS takes the first message for a request of 369 MB and closes the connection without an answer. A
    proxy whose broker is down does the same: the probe tells them apart.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._is_sent = False
        self._answer = b""

    def advance(self) -> None:
        """Take one step; call again until it raises: AuthenticationError if the listener understood, OSError if it did not."""
        if not self._is_sent:
            self._socket.send(_PROBE)
            self._is_sent = True
            return
        try:
            data = self._socket.recv(_PROBE_ANSWER.size - len(self._answer))
        except (BlockingIOError, InterruptedError):
            return
        self._answer += data
        if data and len(self._answer) < _PROBE_ANSWER.size:
            return
        if self._is_kafka():
            raise AuthenticationError(
                "this listener does not speak TLS: it closes TLS connections, and answers an unencrypted request;"
                " set security.protocol to PLAINTEXT or SASL_PLAINTEXT, or connect to the brokers' TLS port",
                condition=TLS_CONDITION,
            )
        raise OSError("the broker closed the connection during the TLS handshake (without an answer)")

    def _is_kafka(self) -> bool:
        if len(self._answer) < _PROBE_ANSWER.size:
            return False
        size, correlation_id = _PROBE_ANSWER.unpack(self._answer)
        return bool(0 < size <= _MAX_PROBE_ANSWER_BYTES and correlation_id == 1)


# OPENSSL'S WORDS

_WRONG_HOST_CODES = (62, 64)  # X509_V_ERR_HOSTNAME_MISMATCH, X509_V_ERR_IP_ADDRESS_MISMATCH
_UNKNOWN_ISSUER_CODES = (2, 18, 19, 20, 21)  # X509_V_ERR_: unable to get (local) issuer, self-signed, cannot verify the leaf
_MISSING_CERTIFICATE_ALERTS = ("ALERT_CERTIFICATE_REQUIRED", "ALERT_BAD_CERTIFICATE", "ALERT_HANDSHAKE_FAILURE")
_NOT_TLS_REMEDY = "; does this listener speak TLS? Its answer is not TLS"
_CERTIFICATE_REMEDY = "; the broker rejects this client's certificate (ssl.keystore.…)"
_VERSIONS_REMEDY = "; no TLS version in common: see ssl.enabled.protocols and ssl.protocol"
_NOTHING_IN_COMMON_REMEDY = (
    "; no TLS version or cipher suite in common: this client speaks TLS 1.2 and 1.3 (ssl.enabled.protocols, ssl.cipher.suites)"
)
_REMEDIES = (
    ("ALERT_PROTOCOL_VERSION", _VERSIONS_REMEDY),
    ("UNSUPPORTED_PROTOCOL", _VERSIONS_REMEDY),
    ("ALERT_HANDSHAKE_FAILURE", "; perhaps no cipher suite in common (ssl.cipher.suites)"),
    ("WRONG_VERSION_NUMBER", _NOT_TLS_REMEDY),
    ("RECORD_LAYER_FAILURE", _NOT_TLS_REMEDY),
    ("PACKET_LENGTH_TOO_LONG", _NOT_TLS_REMEDY),
    ("HTTP_REQUEST", _NOT_TLS_REMEDY),
    ("ALERT_BAD_CERTIFICATE", _CERTIFICATE_REMEDY),
    ("ALERT_UNKNOWN_CA", _CERTIFICATE_REMEDY + ": its issuer is not in the broker's truststore"),
    ("ALERT_CERTIFICATE_EXPIRED", _CERTIFICATE_REMEDY + ": it has expired"),
    ("ALERT_CERTIFICATE", _CERTIFICATE_REMEDY),
)


def _reason(error: ssl.SSLError) -> str:
    """Like SSLV3_ALERT_BAD_CERTIFICATE."""
    return error.reason or str(error)


def _is_end_of_connection(error: ssl.SSLError) -> bool:
    """Whether the connection ended, or the broker reports an internal error: another attempt may succeed."""
    has_ended = isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError | ssl.SSLSyscallError)
    return has_ended or "ALERT_INTERNAL_ERROR" in _reason(error)


def _describe_end(error: OSError) -> str:
    if isinstance(error, ssl.SSLError):
        return _reason(error).lower().replace("_", " ")
    return str(error) or type(error).__name__
