"""Times and bytes: steps, starts, devices, files."""
