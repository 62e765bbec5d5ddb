"""shipped_files.py: certificates, keys and keytabs are found on the executor, or the error says where they were looked for."""

from __future__ import annotations

import traceback
from pathlib import Path

import pytest
from pyspark import SparkFiles

from spark_kafka_sink.config.jaas import JaasEntry, parse_jaas
from spark_kafka_sink.config.secret import Secret
from spark_kafka_sink.errors import ConfigError
from spark_kafka_sink.sink.shipped_files import with_shipped_files


def test_a_relative_path_that_does_not_exist_names_a_file_that_was_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here, spark_files = tmp_path / "here", tmp_path / "sent"
    here.mkdir()
    spark_files.mkdir()
    (here / "ca.pem").touch()
    (spark_files / "ca.pem").touch()
    (spark_files / "me.pem").touch()
    monkeypatch.chdir(here)
    monkeypatch.setattr(SparkFiles, "getRootDirectory", lambda: str(spark_files))
    options = {"ssl.truststore.location": "ca.pem", "ssl.keystore.location": "me.pem", "client.id": "me.pem"}
    assert with_shipped_files(options) == options | {"ssl.keystore.location": str(spark_files / "me.pem")}
    absolute = {"ssl.keystore.location": "/nowhere/me.pem"}
    assert with_shipped_files(absolute) == absolute
    with pytest.raises(ConfigError, match=r"ssl\.keystore\.location=you\.pem: there is no such file, neither in") as raised:
        with_shipped_files({"ssl.keystore.location": "you.pem"})
    assert f"{here}" in raised.value.message
    assert f"--files ({spark_files})" in raised.value.message


def test_files_that_a_login_names_are_found_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """sasl.jaas.config names a keytab among options that are no files; those stay unchanged."""
    (tmp_path / "alice.keytab").touch()
    monkeypatch.setattr(SparkFiles, "getRootDirectory", lambda: str(tmp_path))

    def login_entry(jaas: str) -> JaasEntry:
        login = with_shipped_files({"sasl.jaas.config": Secret(jaas)})["sasl.jaas.config"]
        assert isinstance(login, Secret)
        read = parse_jaas(login.reveal())
        assert isinstance(read, JaasEntry)
        return read

    module = "com.sun.security.auth.module.Krb5LoginModule"
    read = login_entry(f'{module} required useKeyTab=true keyTab="FILE:alice.keytab" principal="a\\"b@EXAMPLE.COM";')
    assert (read.module, read.get("keyTab")) == (module, str(tmp_path / "alice.keytab"))
    assert (read.get("useKeyTab"), read.get("principal")) == ("true", 'a"b@EXAMPLE.COM')
    for other in ('Krb5LoginModule required keyTab="/etc/k";', 'PlainLoginModule required username="keyTab" keyTab="k";'):
        assert login_entry(other).get("keyTab") in ("/etc/k", "k")
    cache = "KEYRING:persistent:0"
    assert login_entry(f'Krb5LoginModule required ticketCache="{cache}";').get("ticketCache") == cache
    with pytest.raises(ConfigError, match=r"sasl\.jaas\.config: keyTab=bob\.keytab: there is no such file") as raised:
        login_entry('Krb5LoginModule required useKeyTab=true keyTab="bob.keytab" principal="hunter2";')
    shown = traceback.TracebackException.from_exception(raised.value, capture_locals=True)
    assert "hunter2" not in str([frame.locals for frame in shown.stack if frame.filename != __file__])
