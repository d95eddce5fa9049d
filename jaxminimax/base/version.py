"""The version of the library, for the package and for privacy statements."""

VERSION = "0.3.0"
