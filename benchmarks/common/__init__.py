"""What the measurements share: results, figures, settings and comparisons of means."""
