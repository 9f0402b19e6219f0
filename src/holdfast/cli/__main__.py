"""`python -m holdfast.cli`: the same as the `holdfast` command, with a chosen interpreter."""

from holdfast.cli.main import main

main()
