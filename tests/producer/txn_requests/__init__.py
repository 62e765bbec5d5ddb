"""Tests of the requests to coordinators: what they carry, and what each error of an answer means."""
