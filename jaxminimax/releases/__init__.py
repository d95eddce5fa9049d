"""The one door that numbers leave the data by."""
