"""`python -m holdfast.cli`: the same as the `holdfast` command, with the interpreter of one's choice."""

from holdfast.cli.main import main

main()
