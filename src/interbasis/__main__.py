"""python -m interbasis."""

from interbasis.cli import main

main()
