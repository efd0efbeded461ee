"""`python -m interbasis`."""

from interbasis.compute.signals import enable_end_notice

enable_end_notice()  # torchrun may end this process while the rest is imported

from interbasis.cli import main  # noqa: E402

main()
