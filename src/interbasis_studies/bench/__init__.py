"""Speed of this version on this machine, in ratios that other machines can compare with."""
