"""AUC against epsilon: the README's main command, and the runs that others share."""
