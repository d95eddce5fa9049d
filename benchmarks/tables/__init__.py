"""What the scorers and estimators of `jaxminimax.tables` reach on whole tables, untuned."""
