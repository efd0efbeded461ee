"""`interbasis families`: which model types of transformers are taken, and how."""

from typing import Annotated

from cyclopts import Parameter

from interbasis.cli import common


def families(
    *types: Annotated[str, Parameter(help="Model types, as in config.json; default: all.")],
    as_json: common.AsJson = False,
) -> None:
    """Show which model types of the installed transformers are taken, in closed form or not.

    A small random model of each type is built, converted, and its logits are compared; all types take a few
    minutes.

    Example: interbasis families llama mixtral mamba
    """
    from interbasis.models.hf.families_table import families_table
    from interbasis.show.result_tables import families_tables

    common.show(families_table(types), as_json, families_tables)
