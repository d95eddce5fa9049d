"""Integers of known law: floor(2^bits G) for a normal G, floor(2^22 E) for a Laplace E, an index.

The gaps between floating-point numbers, and their roundings, tell what noise was added to. Integers
have neither. For an integer vector I and s = 2^bits,

    I + floor(s G) = floor(I + s G),

so that a released sum of integers with this noise is a function of a real Gaussian mechanism of
deviation s, and has all its guarantees. (Floors treat zero as any other number, and nest:
floor(2^bits G) is floor(2^22 G) shifted by 22 - bits.) The same holds for the Laplace law.

What is drawn has this law but for a factor and a tail, both proved: `normal_ratio`, `NORMAL_TAIL`,
`LAPLACE_RATIO`, `LAPLACE_TAIL`; of the index of the largest number with Gumbel noise `CHOICE_RATIO`
and `choice_tail`. Assumed is that the words of the key are independent and uniform,
and that float32 and float64 are IEEE's: sums, products and conversions rounded to nearest,
contracted into fused ones or not, but not reordered.

The normal law is inverted: 31 bits of u = P(|G| > x) choose one of 3,328 cells, where a quadratic
in float32 gives x up to a known error. Where the floor is the same at both ends of that interval,
which it is for 999 of 1,000 numbers at 18 bits, it is certain. The others are drawn anew from 95
bits in float64, and what is in doubt then (one in two million of these at 22 bits) from 255 bits in
integers, whose word is final. So the numbers are the same on all machines and in all precisions.
"""

from jaxminimax.noise._sampler import *
from jaxminimax.noise.floats import *
