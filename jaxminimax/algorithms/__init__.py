"""One paper's algorithm a file: `Hyper`, `State`, `mechanism`, `init`, `update`."""
