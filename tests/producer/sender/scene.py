"""An idempotent producer with brokers that keep logs and check sequences as leaders do."""

from __future__ import annotations

from spark_kafka_sink.producer.accumulator.delivery import Delivery
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.produce import ProduceResponse
from tests.producer.harness import Stage, partition_answer, produce_response, tp
from tests.producer.simulated_brokers import Fate, SimulatedBrokers


class Scene:
    """An idempotent producer with one partition that the brokers know: `introduction` is in its log."""

    def __init__(self, **options: object) -> None:
        self.stage = Stage(enable_idempotence=True, **options)
        self.brokers = SimulatedBrokers(self.stage)
        self.write(b"introduction")

    def write(self, value: bytes) -> Delivery:
        """Write a row while the brokers behave."""
        delivery = self.stage.send(value)
        self.settle()
        return delivery

    def settle(self) -> None:
        """Run rounds until nothing is left to do; the brokers behave."""
        for _ in range(50):
            self.brokers.answer_all()
            self.stage.back_off()
            self.stage.run()
            if not self.stage.accumulator.incomplete and not self.stage.in_flight:
                return
        raise AssertionError("rows are not settled")

    def fail_with(self, carried_out: bool, error: ErrorCode) -> None:
        """Answer the only request with an error, whether the brokers have carried it out or not."""
        (request,) = self.stage.in_flight
        if carried_out:
            self.brokers.answer_to(request, Fate.ANSWER)
        self.stage.client.respond(
            produce_response(partition_answer(0, error)) if error else ProduceResponse(responses=()), request=request
        )
        self.stage.run()

    def log(self) -> list[bytes | None]:
        return self.brokers.logs[tp()].values
