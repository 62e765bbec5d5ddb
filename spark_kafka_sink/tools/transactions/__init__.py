"""Open transactions of exactly-once writes: `pykafka-sink transactions` is the command.

survey.py           which transactional ids of a prefix there are, and what is decided about them
hanging.py          rows of complete transactions that are open in partitions
signs_of_life.py    two looks at them, and what has changed in between
verdicts.py         which are to be aborted or committed, which are left alone, and why
output.py           tables, JSON and sentences
changes.py          abort, commit and repair: look twice, judge, ask, look a third time, end the transactions
console.py          the terminal and the clock
command.py          list, abort, commit, repair; arguments and exit codes
"""
