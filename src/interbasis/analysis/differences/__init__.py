"""What two models with the same sections compute differently, section by section, over data."""
