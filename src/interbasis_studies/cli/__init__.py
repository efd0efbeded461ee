"""The commands of the studies; a command is a file, imported when it is called."""

COMMANDS = {"Studies": ("reproduce", "scoreboard", "bench", "train")}
"""By group; command NAME is the function NAME in the module NAME."""
RESUMING = {"reproduce", "scoreboard", "bench", "train"}
"""Commands that resume when they are run again."""
