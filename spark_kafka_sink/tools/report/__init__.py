"""What the commits of writes have reported, as a page and as a table for a shell. `pykafka-sink report` is the command.

    lines.py        files of JSON lines → CommitLine, one at a time; what could not be read, in words
    series.py       values over time in a bounded number of buckets
    heat.py         rows by topic-partition over time, bounded as well
    statistics.py   CommitLines → what is known of each query
    findings.py     what stands out, and which option to turn: a table of rules
    pictures.py     statistics → SVG (needs matplotlib); svg.py makes it fit into a page
    page.py         the page (needs jinja2)
    json_output.py  statistics → JSON, for programs
    terminal.py     the table for a shell
    command.py      arguments, the order of the files, --follow, exit codes

Law: memory does not grow with the number of commits. A file of any size is read line by line.
"""
