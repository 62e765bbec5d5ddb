"""Finds the files that options name: certificates, keys and keytabs.

A path may be relative to the worker's working directory, or the name of a file that `spark-submit --files` or
`SparkContext.addFile` has sent to the executors.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from pyspark import SparkFiles

from spark_kafka_sink.config import jaas
from spark_kafka_sink.config.secret import Secret
from spark_kafka_sink.config.security_config import FILE_KEYS
from spark_kafka_sink.errors import ConfigError

_LOGIN = "sasl.jaas.config"  # its text may name a file


def with_shipped_files(options: Mapping[str, object]) -> dict[str, object]:
    """The producer's options. A relative path that does not exist here is replaced by the path of the file that was sent.

    Raises ConfigError when no such file was sent either.
    """
    local_options = dict(options)
    for key in FILE_KEYS:
        name = options.get(key)
        if isinstance(name, str) and name:
            local_options[key] = locate(key, name)
    login = options.get(_LOGIN)
    if isinstance(login, Secret):
        for name, path in jaas.files_named_in(login.reveal()).items():
            local_path = locate(f"{_LOGIN}: {name}", path)
            if local_path != path:
                login = Secret(jaas.with_option(login.reveal(), name, local_path))
        local_options[_LOGIN] = login
    return local_options


def locate(option: str, name: str) -> str:
    """The path of the file that `option` names. Raises ConfigError when it is neither here nor among those sent."""
    if os.path.isabs(name) or os.path.exists(name):
        return name
    shipped_path = SparkFiles.get(name)
    if not os.path.exists(shipped_path):
        raise ConfigError(
            f"{option}={name}: there is no such file, neither in the working directory {os.getcwd()} nor among the files sent"
            f" with --files ({SparkFiles.getRootDirectory()}); send it with --files, or give a path that exists on every executor"
        )
    return shipped_path
