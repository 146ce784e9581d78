"""Counter-based uniform numbers: the draw for an output position depends on (seed, position) and on nothing else.

So a request that is repeated, resumed on another engine core or recomputed after a preemption draws the same numbers,
whatever runs beside it. The numbers are made on the host, where seed and position are known before the step runs.
"""

_MASK = (1 << 64) - 1
_BITS = 23
"""Not 24: with 23 bits u <= 1 - 2**-23, so that u x total < total also after rounding to float32."""


def splitmix64(x: int) -> int:
    """One step of the splitmix64 generator from state `x` (Steele, Lea and Flood 2014), as an unsigned 64-bit hash."""
    x = (x + 0x9E3779B97F4A7C15) & _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)


def uniform(seed: int, output_position: int) -> float:
    """A number in [0, 1) that float32 represents exactly; `seed` is unsigned 64-bit."""
    return (splitmix64(splitmix64(seed & _MASK) ^ output_position) >> (64 - _BITS)) / (1 << _BITS)
