"""Per-example gradients of a loss without their matrices, from one forward and backward pass.

The loss of one example is traced and searched, bodies of scans included, for the places where a
parameter, or a static slice of it, meets something in a product, a convolution or an embedding
(`search`, `uses`, `convolution`). A zero is added to what comes out there (`trace`), and the
derivative by that zero, together with what the parameter met, says all about its gradient
(`factors`). One pass over the batch gives both for all parameters of both players; norms and
clipped sums are made of them (`sums`), also where a table is looked up and multiplied. Parameters
whose use is not understood, and those whose matrix is no larger than its factors, get their
per-example gradient; one that meets records in functions of it gets it by way of their matrices
(`search.derived`). `treatment` decides, and `planning` does all of it.

Source: Goodfellow, "Efficient per-example gradient computations", arXiv:1510.01799, for the norms
of rank one; Li, Tramer, Liang and Hashimoto, "Large language models can be strong differentially
private learners", ICLR 2022, for those with shared positions; Bu, Wang, Zha and Karypis,
"Differentially private optimization on large model at small cost", ICML 2023, for the single pass.
Departures: the structure is read off the traced loss instead of from layers, two players share the
pass, rounding is bounded (`factors`), and parameters may be used several times, in loops, in parts
and as several matrices.
"""
