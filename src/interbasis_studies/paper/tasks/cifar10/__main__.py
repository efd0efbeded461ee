"""Claims C4 to C6 alone: python -m interbasis_studies.paper.tasks.cifar10 DATA.npz CHECKPOINT …"""

import argparse

from interbasis.base.progress import progress_bar
from interbasis_studies.paper.tasks.cifar10.directions import animal_direction, table


def main() -> None:
    parser = argparse.ArgumentParser(description="Claims C4 to C6 on CIFAR-10 MLPs.")
    parser.add_argument("data", help="CIFAR-10 as an npz file")
    parser.add_argument("checkpoints", nargs="+", help="safetensors checkpoints of ReLU MLPs")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    arguments = parser.parse_args()
    with progress_bar() as advance:
        result = animal_direction(arguments.data, arguments.checkpoints, progress=advance)
    print(result.model_dump_json(indent=2) if arguments.json else table(result))


if __name__ == "__main__":
    main()
