"""A real Kerberos server (Apache Kerby, in Java as the brokers are) and a broker that asks for its tickets.

Nothing has to be installed for either. The client needs python-gssapi, which is built against the system's Kerberos library.
Kerberos is configured by the environment (KRB5_CONFIG, KRB5CCNAME), which `use` sets for a test.
"""

from __future__ import annotations

import contextlib
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from jobs.java import find_java
from jobs.kafka_jars import Dependency, fetch
from jobs.local_kafka import LocalKafka
from tests.integration.clusters import free_port

REALM = "EXAMPLE.COM"
SOURCE = Path(__file__).with_name("Kdc.java")
KERBY = (Dependency("org.apache.kerby", "kerb-simplekdc", "2.0.3"),)
MODULE = "com.sun.security.auth.module.Krb5LoginModule"
REAUTH_MS = 3000
START_LIMIT_S = 120
END_LIMIT_S = 20


@dataclass(frozen=True)
class Realm:
    """A running Kerberos server, and files in its directory."""

    directory: Path
    port: int

    def keytab(self, name: str) -> Path:
        return self.directory / f"{name}.keytab"

    def krb5_conf(self, name: str = "krb5", *, port: int | None = None, ticket_lifetime: str = "1h") -> Path:
        """For this server, or for one at another port."""
        file = self.directory / f"{name}.conf"
        file.write_text(
            f"""\
[libdefaults]
    default_realm = {REALM}
    dns_lookup_kdc = false
    dns_lookup_realm = false
    dns_canonicalize_hostname = false
    rdns = false
    udp_preference_limit = 1
    ticket_lifetime = {ticket_lifetime}
[realms]
    {REALM} = {{
        kdc = 127.0.0.1:{port or self.port}
    }}
[domain_realm]
    localhost = {REALM}
    127.0.0.1 = {REALM}
"""
        )
        return file

    def use(self, monkeypatch: pytest.MonkeyPatch, krb5_conf: Path | None = None, cache: Path | None = None) -> None:
        """Make it this process's Kerberos, with a ticket cache that is not the user's."""
        monkeypatch.setenv("KRB5_CONFIG", str(krb5_conf or self.krb5_conf()))
        monkeypatch.setenv("KRB5CCNAME", f"FILE:{cache or self.directory / 'no-such-cache'}")

    def kinit(self, gssapi: Any, cache: Path, name: str = "alice") -> Any:
        """Get tickets into a cache, as kinit does. Returns the credentials, whose `lifetime` tells how long they are good."""
        principal = gssapi.Name(f"{name}@{REALM}", gssapi.NameType.kerberos_principal)
        store = {"client_keytab": str(self.keytab(name)), "ccache": f"FILE:{cache}"}
        tickets = gssapi.Credentials(name=principal, mechs=[gssapi.MechType.kerberos], usage="initiate", store=store)
        assert tickets.lifetime > 0
        return gssapi.Credentials(mechs=[gssapi.MechType.kerberos], usage="initiate", store={"ccache": f"FILE:{cache}"})


@contextlib.contextmanager
def kerberos_server(directory: Path) -> Iterator[Realm]:
    realm = Realm(directory, free_port())
    command = [str(find_java()), "-Xmx128m", "-cp", f"{fetch('kerby', KERBY)}/*", str(SOURCE), str(directory), str(realm.port)]
    with (directory / "kdc.log").open("w") as log:
        server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True)
    watchdog = threading.Timer(START_LIMIT_S, server.kill)
    watchdog.start()
    try:
        assert server.stdout is not None
        assert any(line == "ready\n" for line in server.stdout), (directory / "kdc.log").read_text()
        watchdog.cancel()
        yield realm
    finally:
        watchdog.cancel()
        try:
            server.communicate(timeout=END_LIMIT_S)  # it ends with its input
        except subprocess.TimeoutExpired:
            server.kill()
            server.communicate(timeout=END_LIMIT_S)


def jaas(**options: str) -> str:
    return " ".join([MODULE, "required", *(f'{name}="{value}"' for name, value in options.items())]) + ";"


@contextlib.contextmanager
def kerberos_broker(realm: Realm, work_dir: Path) -> Iterator[LocalKafka]:
    login = jaas(useKeyTab="true", storeKey="true", keyTab=str(realm.keytab("kafka")), principal=f"kafka/127.0.0.1@{REALM}")
    properties = {
        "listener.name.sasl_plaintext.sasl.enabled.mechanisms": "GSSAPI",
        "listener.name.sasl_plaintext.gssapi.sasl.jaas.config": login,
        "listener.name.sasl_plaintext.gssapi.connections.max.reauth.ms": str(REAUTH_MS),
        "sasl.kerberos.service.name": "kafka",
    }
    cluster = LocalKafka(work_dir, extra_listeners=["SASL_PLAINTEXT"], properties=properties)
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("JDK_JAVA_OPTIONS", f"-Djava.security.krb5.conf={realm.krb5_conf()}")
        cluster.start()
    try:
        yield cluster
    finally:
        cluster.stop()
