"""A real broker that asks for SASL: its listeners, users and permissions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jobs.local_kafka import LocalKafka
from tests.fakes.certificates import Authority
from tests.integration.processes import until

if TYPE_CHECKING:
    from confluent_kafka.admin import AclBinding, AdminClient

SECURITY = "org.apache.kafka.common.security"
PASSWORD = "canary-7Qx2"  # never to be seen in any output
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
REAUTH_MS = 3000  # sessions of PLAIN

AUTHORITY = Authority("ca")
BROKER = AUTHORITY.issue("broker")

JAAS = {
    "PLAIN": f"{SECURITY}.plain.PlainLoginModule",
    "SCRAM-SHA-256": f"{SECURITY}.scram.ScramLoginModule",
    "SCRAM-SHA-512": f"{SECURITY}.scram.ScramLoginModule",
    "OAUTHBEARER": f"{SECURITY}.oauthbearer.OAuthBearerLoginModule",
}


def jaas(mechanism: str, user: str = "alice", password: str = PASSWORD) -> str:
    """A Spark user's sasl.jaas.config."""
    if mechanism == "OAUTHBEARER":
        return f'{JAAS[mechanism]} required unsecuredLoginStringClaim_sub="{user}";'
    return f'{JAAS[mechanism]} required username="{user}" password="{password}";'


def client_options(
    mechanism: str, user: str = "alice", password: str = PASSWORD, protocol: str = "SASL_PLAINTEXT"
) -> dict[str, Any]:
    """Kafka's own keys."""
    tls = {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": AUTHORITY.pem} if protocol == "SASL_SSL" else {}
    return {
        "security.protocol": protocol,
        "sasl.mechanism": mechanism,
        "sasl.jaas.config": jaas(mechanism, user, password),
        **tls,
    }


def listener_properties(listener: str, mechanisms: Sequence[str]) -> dict[str, str]:
    """Sessions of PLAIN end after REAUTH_MS."""
    prefix = f"listener.name.{listener.lower()}"
    everything = {
        f"{prefix}.sasl.enabled.mechanisms": ",".join(mechanisms),
        f"{prefix}.plain.sasl.jaas.config": f'{JAAS["PLAIN"]} required user_alice="{PASSWORD}" user_bob="{PASSWORD}";',
        f"{prefix}.plain.connections.max.reauth.ms": str(REAUTH_MS),
        **{f"{prefix}.{name.lower()}.sasl.jaas.config": f"{JAAS[name]} required;" for name in MECHANISMS if name != "PLAIN"},
    }
    absent = {name.lower() for name in MECHANISMS} - {name.lower() for name in mechanisms}
    return {key: value for key, value in everything.items() if key.split(".")[3] not in absent}


def tls_properties(listener: str, keystore: Path) -> dict[str, str]:
    keystore.write_text(BROKER.key_pem() + BROKER.chain_pem)
    prefix = f"listener.name.{listener.lower()}.ssl.keystore"
    return {f"{prefix}.type": "PEM", f"{prefix}.location": str(keystore)}


def scram_users() -> list[str]:
    """For Kafka's storage tool."""
    options = []
    for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
        options += ["--add-scram", f"{mechanism}=[name=alice,password={PASSWORD}]"]
    return options


def sasl_cluster(
    work_dir: Path,
    more_properties: Mapping[str, str] | None = None,
    more_format_options: Sequence[str] = (),
    *,
    brokers: int = 1,
    version: str | None = None,
) -> LocalKafka:
    """Every mechanism with and without TLS, a listener with SCRAM-SHA-256 alone, and ACLs.

    Everybody on the PLAINTEXT listener is ANONYMOUS, who may do anything.
    """
    properties = {
        **listener_properties("SASL_PLAINTEXT", MECHANISMS),
        **listener_properties("SASL_SSL", MECHANISMS),
        **listener_properties("SCRAM", ["SCRAM-SHA-256"]),
        **tls_properties("SASL_SSL", work_dir / "broker.pem"),
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
        **(more_properties or {}),
    }
    listeners = ["SASL_PLAINTEXT", "SASL_SSL", "SCRAM:SASL_PLAINTEXT"]
    return LocalKafka(
        work_dir,
        brokers=brokers,
        version=version,
        extra_listeners=listeners,
        properties=properties,
        format_options=[*scram_users(), *more_format_options],
    )


def allow(broker: LocalKafka, user: str, operation: str, prefix: str, resource: str = "TOPIC") -> None:
    """Permit an operation on all topics (transactional ids …) that begin so."""
    _bind(broker, user, operation, prefix, resource, "ALLOW")


def deny(broker: LocalKafka, user: str, operation: str, prefix: str, resource: str = "TOPIC") -> None:
    """The same operation is denied, whatever else permits it: Kafka lets DENY override ALLOW. Others that imply it stay."""
    _bind(broker, user, operation, prefix, resource, "DENY")


def _bind(broker: LocalKafka, user: str, operation: str, prefix: str, resource: str, permission: str) -> None:
    """Returns when the broker knows it: it hears of it a moment after the controller has stored it."""
    from confluent_kafka.admin import AclBinding, AclOperation, AclPermissionType, AdminClient, ResourcePatternType, ResourceType

    pattern = ResourcePatternType.LITERAL if resource == "BROKER" else ResourcePatternType.PREFIXED
    binding = AclBinding(
        ResourceType[resource], prefix, pattern, f"User:{user}", "*", AclOperation[operation], AclPermissionType[permission]
    )
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    for future in admin.create_acls([binding]).values():
        future.result(30)
    until(lambda: _is_known(admin, binding), 30, f"the broker knows of {binding}")


def _is_known(admin: AdminClient, binding: AclBinding) -> bool:
    from confluent_kafka.admin import AclBindingFilter

    names = ("restype", "name", "resource_pattern_type", "principal", "host", "operation", "permission_type")
    return bool(admin.describe_acls(AclBindingFilter(*(getattr(binding, each) for each in names))).result(30))


def add_scram_user(broker: LocalKafka, user: str, password: str, iterations: int = 8192) -> None:
    """A name and password of any characters, which the storage tool's command line would not survive."""
    from confluent_kafka.admin import (
        AdminClient,
        ScramCredentialInfo,
        ScramMechanism,
        UserScramCredentialUpsertion,
    )

    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
        credential = UserScramCredentialUpsertion(user, ScramCredentialInfo(mechanism, iterations), password.encode())
        for future in admin.alter_user_scram_credentials([credential]).values():
            future.result(30)
