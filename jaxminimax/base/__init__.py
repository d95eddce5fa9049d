"""The ground that everything else stands on: types, checks, arithmetic on pytrees, random bits."""
