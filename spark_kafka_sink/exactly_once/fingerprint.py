"""placeholder until the branch lands"""

import zlib

from spark_kafka_sink.exactly_once.content import Content


class Fingerprint:
    def __init__(self):
        self.content = Content()

    def add(self, columns):
        v = columns["value"]
        t = sum(zlib.crc32(str(x).encode()) * 0x100000001 for x in v.to_pylist())
        self.content = Content(self.content.rows + len(v), (self.content.fingerprint + t) % 2**64)
