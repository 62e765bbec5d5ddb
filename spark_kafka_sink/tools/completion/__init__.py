"""Scripts that complete `pykafka-sink` in a shell: `pykafka-sink completion bash` prints one.

They are made from the parsers and the tables of options, so that they know every tool, flag and option, except options for
passwords. A script holds all words itself: pressing TAB starts no Python.

words.py        the parsers of all tools and the names of options, as plain data
bash.py         makes a script for bash from that data; zsh.py and fish.py likewise
command.py      arguments, exit codes
"""
