"""ListTransactions: the transactional ids of one coordinator, and the states that they are in (ListTransactionsRequest.json).

Each broker lists the ids that it coordinates and that the user may describe, so all brokers have to be asked.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.schema import Int16, Int32, Int64, Message, Request, since


@dataclass(frozen=True, slots=True, kw_only=True)
class ListTransactionsResponseState(Message):
    transactional_id: str
    producer_id: Int64
    transaction_state: str  # Empty, Ongoing, PrepareCommit, PrepareAbort, CompleteCommit, CompleteAbort


@dataclass(frozen=True, slots=True, kw_only=True)
class ListTransactionsResponse(Message):
    API_KEY: ClassVar = ApiKey.LIST_TRANSACTIONS

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    unknown_state_filters: tuple[str, ...] = ()
    transaction_states: tuple[ListTransactionsResponseState, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ListTransactionsRequest(Request[ListTransactionsResponse]):
    """Asks one broker. Filters that are empty, negative or null exclude nothing."""

    state_filters: tuple[str, ...] = ()
    producer_id_filters: tuple[Int64, ...] = ()
    duration_filter: Annotated[Int64, since(1)] = -1  # ms that a transaction has been open (KIP-994)
    transactional_id_pattern: Annotated[str | None, since(2)] = None  # a regular expression of RE2 (KIP-1152)
