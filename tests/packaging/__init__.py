"""What a user of the installed package meets: its types, its metadata, the wheel, and the workflows that would publish it.

test_types.py       type checkers accept programs/whole_api.py, and find the errors in programs/misspelt.py
test_metadata.py    pyproject.toml, README on a package index, versions
test_wheel.py       wheel and source archive are built and looked at (slow)
test_workflows.py   .github/ and the pre-commit hooks
release.py          python -m tests.packaging.release v0.1.0: what keeps this checkout from being released as that tag
smoke.py            writes and reads with the installed package alone: for the workflows
"""
