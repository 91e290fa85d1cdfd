"""Table 1."""
