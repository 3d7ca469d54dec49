"""`python -m heddle` is `heddle`."""

from heddle.cli import main

main()
