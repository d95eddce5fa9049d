"""Table 2 of Yang et al., run again."""
