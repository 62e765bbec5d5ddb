"""Questions: asks whose results make one answer. Some questions also change something, such as those that commit offsets.

Several questions can be asked side by side, and each has its own answer or error.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from spark_kafka_sink.admin.operation import Ask
from spark_kafka_sink.errors import KafkaError, KafkaTimeoutError, printable_list

AnswerT = TypeVar("AnswerT")
NextT = TypeVar("NextT")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Question(Generic[AnswerT]):
    """Asks, and how their results become one answer.

    Args:
        read: makes the answer from the results, which are in the order of the asks. It may raise, and may send more asks.
        reads_errors: whether `read` gets a KafkaError in place of each result that is missing. If false, the reply raises it.
    """

    asks: Sequence[Ask[Any, Any]]
    read: Callable[[list[Any]], AnswerT]
    reads_errors: bool = False

    def then(self, read: Callable[[AnswerT], NextT]) -> Question[NextT]:
        """A question with the same asks. Its `read` makes the new answer from the answer to this question."""
        return Question(self.asks, lambda results: read(self.read(results)), self.reads_errors)


@dataclass(frozen=True, slots=True)
class Reply(Generic[AnswerT]):
    """The outcomes of a question's asks."""

    question: Question[AnswerT]
    outcomes: Sequence[Any]  # a result or a KafkaError for each ask
    timeout_ms: int

    def read_answer(self) -> AnswerT:
        """Make the answer with the question's `read`. Blocks if `read` sends more asks. Raises as `results_of` and `read` do."""
        if self.question.reads_errors:
            return self.question.read(list(self.outcomes))
        return self.question.read(results_of(self.question.asks, self.outcomes, self.timeout_ms))


def results_of(asks: Sequence[Ask[Any, T]], outcomes: Sequence[T | KafkaError], timeout_ms: int) -> list[T]:
    """The results of all asks. If some have failed, raises the first error that is no time-out.

    If several asks failed, and only because time ran out, one KafkaTimeoutError names them.
    """
    results = [outcome for outcome in outcomes if not isinstance(outcome, KafkaError)]
    if len(results) == len(outcomes):
        return results
    timeouts = [
        (ask.operation.describe(ask.item), outcome)
        for ask, outcome in zip(asks, outcomes, strict=True)
        if isinstance(outcome, KafkaTimeoutError)
    ]
    errors = [outcome for outcome in outcomes if isinstance(outcome, KafkaError)]
    other_errors = [error for error in errors if not isinstance(error, KafkaTimeoutError)]
    if other_errors or len(timeouts) == 1:
        raise (other_errors or errors)[0]
    items = printable_list(description for description, _ in timeouts)
    raise KafkaTimeoutError(
        f"{len(timeouts):,} of {len(outcomes):,} requests were not answered within {timeout_ms} ms: {items}; the first of them:"
        f" {timeouts[0][1].message}",
        condition=timeouts[0][1].condition,
    )
