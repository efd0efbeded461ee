"""`python -m interbasis`."""

from interbasis.compute.signals import say_when_ended

say_when_ended()  # torchrun may end this process while the rest is imported

from interbasis.cli import main  # noqa: E402

main()
