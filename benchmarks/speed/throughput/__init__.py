"""Examples a second of the library and of its peers."""
