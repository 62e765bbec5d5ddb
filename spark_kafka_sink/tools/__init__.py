"""Programs for the command line that need no Spark. Each package's command.py has its `main` and its `build_parser`.

command.py      `pykafka-sink`: imports the tool that the first word names, and runs it
transactions/   lists the open transactions of exactly-once writes, ends them, and repairs what hangs
report/         draws a page, or prints a table, from what commits have reported
perf/           measures how fast a topic can be written, like kafka-producer-perf-test
check/          says whether a write would succeed, seen from this host
options/        shows options with type, default and what they do
catalog.py      the table of the tools
completion/     scripts that complete the command in bash, zsh and fish
exit_codes.py   what all tools return, also at Ctrl-C and when nobody reads their output
patience.py     a line on stderr when something takes long
sink_arguments.py   arguments that name a write: brokers, topic, options
arguments.py    what the parsers of all tools share
properties.py   reads Java's .properties files, and gives options the sink's names
words.py        numbers and times for people
errors.py       errors whose text is for the user
"""
