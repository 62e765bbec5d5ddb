"""Tests of Avro's binary form: columns of each type, against fastavro."""
