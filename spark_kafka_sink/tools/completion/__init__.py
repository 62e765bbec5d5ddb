"""Scripts that complete `pykafka-sink` in a shell: `pykafka-sink completion bash` prints one.

They are made from the parsers and the tables of options, so that they know every tool, flag and option. A script holds all
words itself: pressing TAB starts no Python.

words.py        the parsers of all tools and the names of options, as plain data
bash.py         that data → a script for bash; zsh.py and fish.py likewise
command.py      arguments, exit codes
"""
