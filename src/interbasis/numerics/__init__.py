"""Linear algebra, integration rules, random signs, and the general path by automatic differentiation."""
