"""Programs for the command line that need no Spark. Each package's command.py has its `main`, which jobs/ calls.

transactions/   lists the open transactions of exactly-once writes, and aborts or commits them
report/         draws a page, or prints a table, from what commits have reported
perf/           measures how fast a topic can be written, like kafka-producer-perf-test
properties.py   options as users write them: NAME=VALUE, .properties files
words.py        numbers and times for people
errors.py       what a tool raises for its user
"""
