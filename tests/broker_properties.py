"""Properties of brokers that let tests wait for less time."""

from __future__ import annotations

# A killed broker may come back after three seconds instead of nine.
QUICK_SESSIONS = {"broker.session.timeout.ms": "3000", "broker.heartbeat.interval.ms": "500"}
# A transaction that has timed out is ended within half a second instead of ten.
QUICK_TIMEOUTS = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "500"}
# A transactional id is forgotten three seconds after its last use instead of seven days.
QUICK_EXPIRY = {"transactional.id.expiration.ms": "3000", "transaction.remove.expired.transaction.cleanup.interval.ms": "500"}
