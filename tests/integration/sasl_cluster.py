"""A real broker that asks for SASL: users, listener properties, permissions. For any listener name, SASL_SSL included."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jobs.local_kafka import LocalKafka

SECURITY = "org.apache.kafka.common.security"
PASSWORD = "canary-7Qx2"  # never to be seen in any output
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
REAUTH_MS = 3000  # sessions of PLAIN

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
    return {
        "security.protocol": protocol,
        "sasl.mechanism": mechanism,
        "sasl.jaas.config": jaas(mechanism, user, password),
    }


def broker_properties(listener: str = "SASL_PLAINTEXT") -> dict[str, str]:
    """Every mechanism on the listener; ACLs for all but ANONYMOUS, which is everybody on the PLAINTEXT listener."""
    prefix = f"listener.name.{listener.lower()}"
    return {
        f"{prefix}.sasl.enabled.mechanisms": ",".join(MECHANISMS),
        f"{prefix}.plain.sasl.jaas.config": f'{JAAS["PLAIN"]} required user_alice="{PASSWORD}" user_bob="{PASSWORD}";',
        f"{prefix}.plain.connections.max.reauth.ms": str(REAUTH_MS),
        f"{prefix}.scram-sha-256.sasl.jaas.config": f"{JAAS['SCRAM-SHA-256']} required;",
        f"{prefix}.scram-sha-512.sasl.jaas.config": f"{JAAS['SCRAM-SHA-512']} required;",
        f"{prefix}.oauthbearer.sasl.jaas.config": f"{JAAS['OAUTHBEARER']} required;",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
    }


def scram_users() -> list[str]:
    """For Kafka's storage tool."""
    options = []
    for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
        options += ["--add-scram", f"{mechanism}=[name=alice,password={PASSWORD}]"]
    return options


def sasl_cluster(work_dir: Path) -> LocalKafka:
    return LocalKafka(work_dir, extra_listeners=["SASL_PLAINTEXT"], properties=broker_properties(), format_options=scram_users())


def allow(broker: LocalKafka, user: str, operation: str, topic_prefix: str) -> None:
    """Permit an operation on all topics that begin so."""
    from confluent_kafka.admin import AclBinding, AclOperation, AclPermissionType, AdminClient, ResourcePatternType, ResourceType

    binding = AclBinding(
        ResourceType.TOPIC,
        topic_prefix,
        ResourcePatternType.PREFIXED,
        f"User:{user}",
        "*",
        AclOperation[operation],
        AclPermissionType.ALLOW,
    )
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    for future in admin.create_acls([binding]).values():
        future.result(30)


def add_scram_user(broker: LocalKafka, user: str, password: str) -> None:
    """A name and password of any characters, which the storage tool's command line would not survive."""
    from confluent_kafka.admin import (
        AdminClient,
        ScramCredentialInfo,
        ScramMechanism,
        UserScramCredentialUpsertion,
    )

    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
        credential = UserScramCredentialUpsertion(user, ScramCredentialInfo(mechanism, 8192), password.encode())
        for future in admin.alter_user_scram_credentials([credential]).values():
            future.result(30)
