"""Elementary functions over a `MathBuilder`, by family; `lowering/math.py` is the table of them."""
