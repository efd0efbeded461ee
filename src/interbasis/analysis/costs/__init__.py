"""What a build costs: operations from shapes, seconds from a profile of the machine."""
