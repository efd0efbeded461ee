"""The commands of the studies; a command is a file, imported when it is called."""

COMMANDS = {
    "Studies": {
        "reproduce": "Reproduce a section of the paper, all its tables, with a verdict per claim.",
        "scoreboard": "Score every basis on networks whose features, interactions and modules are known.",
        "bench": "Measure the speed of this version: phases in forward passes, ratios to autograd, memory.",
        "train": "Train a model of the paper, or a small residual network.",
    },
}
"""By group, with the first line of each one's help; command NAME is the function NAME in the module NAME."""
RESUMING = {"reproduce", "scoreboard", "bench", "train"}
"""Commands that resume when they are run again."""
