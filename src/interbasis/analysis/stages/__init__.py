"""One file per stage: a frozen request, a frozen result, and `run(workspace, request) -> Result`.

A stage imports what computes when it runs, so that reading its results stays light.
"""
