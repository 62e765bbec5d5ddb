"""registry_of_write.py: the files of a registry's options are found where it is asked, and only then."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark import SparkFiles

from spark_kafka_sink.errors import ConfigError
from spark_kafka_sink.schemas import known_schemas
from spark_kafka_sink.sink.registry_of_write import registry_of
from tests.fakes.registry_config import registry_config
from tests.schemas.fake_registry import FakeRegistry
from tests.sink.columns import sink_options


def test_files_of_a_registry_are_found_when_it_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An executor that asks nothing needs none of them."""
    known_schemas.forget()
    monkeypatch.setattr(SparkFiles, "getRootDirectory", lambda: str(tmp_path))
    with FakeRegistry() as registry:
        registry.register("s", '"long"')
        registry_options = {"schema.registry.url": registry.url, "schema.registry.ssl.truststore.location": "ca.pem"}
        options = sink_options(registry=registry_config(registry_options))
        with registry_of(options) as schemas:
            with pytest.raises(ConfigError, match=r"schema\.registry\.ssl\.truststore\.location=ca\.pem: there is no such file"):
                schemas.by_id(1)
            (tmp_path / "ca.pem").touch()
            assert schemas.by_id(1).text == '"long"'
    known_schemas.forget()
