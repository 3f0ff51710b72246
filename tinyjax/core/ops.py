"""The closed op set. One enum entry per op: its meaning, the stages it may appear in, its arity.

Stages: J = jaxpr (tensor ops, calls, control flow; pure), K = kernel (ranges, index,
load, store), P = program (an ordered list of scalar or vector operations).

Conventions every rule relies on:

* Elementwise operands have the shape of the result or are rank 0; a rank-0 operand is broadcast.
  There is no other implicit broadcasting, and dtypes agree exactly (promotion happens above).
* Ops with several results (CALL, SCAN, WHILE, COND, SORT, ARGREDUCE, TUPLE) have a `TupleAval`;
  GETTUPLE reads one of them.
* What `arg` holds for each op is said in its entry.
"""

from __future__ import annotations

from enum import Enum, unique

J, K, P = 1, 2, 4
ANY_ARITY = -1


@unique  # equal entries would silently be aliases
class Op(Enum):
    """Kinds of `UOp`. `Op.X.meaning`, `.stages` (bit set of J, K, P), `.arity` (-1: any)."""

    meaning: str
    stages: int
    arity: int

    def __init__(self, meaning: str, stages: int, arity: int) -> None:
        self.meaning, self.stages, self.arity = meaning, stages, arity

    # Members are singletons: identity hashing keeps the intern table off Enum's Python hash.
    __hash__ = object.__hash__

    def __repr__(self) -> str:
        return self.name

    # --- leaves ---------------------------------------------------------------------------
    CONST = ("scalar literal; arg = (dtype, bytes, weak)", J | K | P, 0)
    IOTA = ("position along an axis; arg = (aval, axis)", J, 0)
    VAR = ("open variable of a running trace; arg = Var", J, 0)
    PARAM = ("positional input of a closed body; arg = (slot, aval)", J | K | P, 0)
    BUFFER = ("a value in memory; arg = Buffer", J, 0)
    DIM = ("a symbolic size as an int64 scalar; arg = the size", J | K | P, 0)

    # --- elementwise, one operand ------------------------------------------------------------
    NEG = ("-x; integers wrap", J | K | P, 1)
    ABS = ("|x|; real for complex x; INT_MIN stays", J | K | P, 1)
    SIGN = ("-1, 0, 1 (NaN and -0.0 kept); x/|x| for complex", J | K | P, 1)
    FLOOR = ("largest integer <= x", J | K | P, 1)
    CEIL = ("smallest integer >= x", J | K | P, 1)
    ROUND = ("nearest integer, ties to even", J | K | P, 1)
    TRUNC = ("towards zero", J | K | P, 1)
    SQRT = ("square root", J | K | P, 1)
    RSQRT = ("1/sqrt(x)", J | K | P, 1)
    CBRT = ("real cube root", J | K | P, 1)
    EXP = ("e**x", J | K | P, 1)
    EXP2 = ("2**x", J | K | P, 1)
    EXPM1 = ("e**x - 1", J | K | P, 1)
    LOG = ("natural logarithm", J | K | P, 1)
    LOG2 = ("base-2 logarithm", J | K | P, 1)
    LOG1P = ("log(1 + x)", J | K | P, 1)
    SIN = ("sine", J | K | P, 1)
    COS = ("cosine", J | K | P, 1)
    TAN = ("tangent", J | K | P, 1)
    ASIN = ("arc sine", J | K | P, 1)
    ACOS = ("arc cosine", J | K | P, 1)
    ATAN = ("arc tangent", J | K | P, 1)
    SINH = ("hyperbolic sine", J | K | P, 1)
    COSH = ("hyperbolic cosine", J | K | P, 1)
    TANH = ("hyperbolic tangent", J | K | P, 1)
    ASINH = ("inverse hyperbolic sine", J | K | P, 1)
    ACOSH = ("inverse hyperbolic cosine", J | K | P, 1)
    ATANH = ("inverse hyperbolic tangent", J | K | P, 1)
    LOGISTIC = ("1 / (1 + e**-x)", J | K | P, 1)
    ERF = ("error function", J | K | P, 1)
    ERFC = ("1 - erf(x)", J | K | P, 1)
    ERFINV = ("inverse error function", J | K | P, 1)
    LGAMMA = ("log |gamma(x)|", J | K | P, 1)
    DIGAMMA = ("derivative of lgamma", J | K | P, 1)
    IS_FINITE = ("neither infinite nor NaN; bool", J | K | P, 1)
    NOT = ("bitwise or logical complement", J | K | P, 1)
    POPCOUNT = ("number of one bits", J | K | P, 1)
    CLZ = ("number of leading zero bits; the width for 0", J | K | P, 1)
    REAL = ("real part of a complex value", J | K | P, 1)
    IMAG = ("imaginary part of a complex value", J | K | P, 1)
    CONJ = ("complex conjugate", J | K | P, 1)
    CAST = ("convert; arg = (dtype, weak); float to int saturates, NaN -> 0", J | K | P, 1)
    BITCAST = ("reinterpret bits of equal width; arg = dtype", J | K | P, 1)
    REDUCE_PRECISION = ("round to arg = (exponent bits, mantissa bits)", J | K | P, 1)

    # --- elementwise, two and three operands -------------------------------------------------
    ADD = ("x + y", J | K | P, 2)
    SUB = ("x - y", J | K | P, 2)
    MUL = ("x * y", J | K | P, 2)
    DIV = ("x / y; integers truncate towards zero; x/0 = -1 for ints", J | K | P, 2)
    REM = ("remainder with the sign of x; x rem 0 = x for ints", J | K | P, 2)
    POW = ("x ** y, both floating or complex", J | K | P, 2)
    MAX = ("larger; NaN wins; lexicographic for complex", J | K | P, 2)
    MIN = ("smaller; NaN wins; lexicographic for complex", J | K | P, 2)
    ATAN2 = ("angle of (y, x)", J | K | P, 2)
    NEXTAFTER = ("next float from x towards y", J | K | P, 2)
    AND = ("bitwise or logical and", J | K | P, 2)
    OR = ("bitwise or logical or", J | K | P, 2)
    XOR = ("bitwise or logical exclusive or", J | K | P, 2)
    SHL = ("shift left; 0 when over-wide", J | K | P, 2)
    SHRL = ("logical shift right; 0 when over-wide", J | K | P, 2)
    SHRA = ("arithmetic shift right; sign fill when over-wide", J | K | P, 2)
    CMPEQ = ("x == y; bool", J | K | P, 2)
    CMPNE = ("x != y; bool", J | K | P, 2)
    CMPLT = ("x < y; bool; lexicographic for complex", J | K | P, 2)
    CMPLE = ("x <= y; bool; lexicographic for complex", J | K | P, 2)
    COMPLEX = ("re + i im", J | K | P, 2)
    WHERE = ("x where the condition holds, else y; src = (cond, x, y)", J | K | P, 3)

    # --- movement ----------------------------------------------------------------------------
    RESHAPE = ("same elements in row-major order; arg = shape", J, 1)
    PERMUTE = ("axis i of the result is axis arg[i] of x", J, 1)
    EXPAND = ("axis i of x becomes axis dims[i]; arg = (shape, dims); size 1 repeats", J, 1)
    PAD = ("x with a border; src = (x, fill); arg = ((lo, hi, interior), ...) per axis", J, 2)
    SLICE = ("arg = ((start, stop, step), ...) per axis, step > 0", J, 1)
    FLIP = ("reverse the axes in arg", J, 1)
    CONCAT = ("join along axis arg", J, ANY_ARITY)
    WINDOW = (
        "arg = (axis, size, stride, dilation): axis becomes window positions o, a new last axis k "
        "has index o*stride + k*dilation",
        J,
        1,
    )

    # --- reductions, contraction, indexed ------------------------------------------------------
    REDUCE = ("arg = (kind, axes); kind in add mul max min and or xor", J, 1)
    ARGREDUCE = ("(value, index); arg = (kind, axis, index dtype); first NaN wins", J, 1)
    PREFIX = (
        "inclusive scan; kind in add mul max min; J: arg = (kind, axis, reverse); "
        "K: src = (value, serial range), arg = (kind, reverse), the value so far",
        J | K | P,
        ANY_ARITY,
    )
    DOT = ("arg = DotInfo(contract, batch, dtype); result batch + x free + y free", J, 2)
    GATHER = ("src = (x, indices) or (x, indices, fill); arg = GatherInfo", J, ANY_ARITY)
    SCATTER = ("src = (x, indices, updates); arg = ScatterInfo", J, 3)
    DYNAMIC_SLICE = ("src = (x, *starts); arg = sizes; starts clamped", J, ANY_ARITY)
    DYNAMIC_UPDATE = ("src = (x, update, *starts); starts clamped", J, ANY_ARITY)
    SORT = ("sorted operands; arg = (axis, num_keys, stable)", J, ANY_ARITY)
    RANDOM_BITS = ("src = (keys[*b, 2],); arg = (shape, bit width)", J, 1)
    FFT = ("arg = (kind, lengths); kind in fft ifft rfft irfft", J, 1)

    # --- calls and control flow ----------------------------------------------------------------
    TUPLE = ("several values; a body when all leaves are PARAM or CONST", J | K, ANY_ARITY)
    GETTUPLE = ("result arg of a node with several", J | K | P, 1)
    CALL = ("src = (body, *args); arg = CallInfo", J, ANY_ARITY)
    SCAN = ("src = (body, *consts, *carry, *xs); arg = ScanInfo", J, ANY_ARITY)
    WHILE = (
        "src = (cond, body, *cond consts, *body consts, *carry); arg = WhileInfo",
        J,
        ANY_ARITY,
    )
    COND = (
        "src = (*branches, index, *args); arg = number of branches; index clamped",
        J,
        ANY_ARITY,
    )
    CUSTOM_LIN = ("src = (*residuals, *tangents); arg = CustomLinInfo; linear by its rule", J, -1)

    # --- identities with a purpose --------------------------------------------------------------
    STOP_GRADIENT = ("x, constant for differentiation", J, 1)
    NAME = ("x, named arg for checkpoint policies", J, 1)
    OPTIMIZATION_BARRIER = ("x, not moved or merged across", J, 1)
    REMAT = ("x, recomputed: arg is a fresh id that keeps it apart from equal nodes", J, 1)
    KEY_WRAP = ("uint32 data as typed keys; arg = KeyDType", J, 1)
    KEY_UNWRAP = ("typed keys as uint32 data", J, 1)
    COPY = ("x in memory of its own; arg = device or None", J, 1)

    # --- the outside world ------------------------------------------------------------------------
    HOST_CALL = ("library routine on the host (LAPACK); arg = HostCallInfo", J, ANY_ARITY)
    CALLBACK = ("Python callback; an effect takes and gives a token; arg = CallbackInfo", J, -1)
    CHECK = ("src = (condition, *values, token): raise when it is false; arg = CheckInfo", J, -1)
    KERNEL = ("kernel written by the user; arg = KernelInfo", J, ANY_ARITY)

    # --- collectives over named axes -----------------------------------------------------------------
    ALL_REDUCE = ("src = (x, *axis indices); arg = (kind, axis names)", J, ANY_ARITY)
    ALL_GATHER = ("all parts joined; arg = (axis name, axis, tiled)", J, 2)
    REDUCE_SCATTER = ("one part of the sum; arg = (axis name, axis, tiled)", J, 2)
    PPERMUTE = ("arg = (axis name, pairs)", J, 2)
    ALL_TO_ALL = ("arg = (axis name, split axis, concat axis, tiled)", J, 2)
    AXIS_INDEX = ("position along axis name arg", J, 0)
    PCAST = ("replicated to varying over arg", J, 1)

    # --- kernel stage: scalars over ranges ------------------------------------------------------------
    RANGE = (
        "loop variable; src = (extent[, limit]): min(extent, limit) steps; arg = (id, kind)",
        K | P,
        ANY_ARITY,
    )
    INDEX = ("element of a buffer; src = (buffer, index[, valid])", K | P, ANY_ARITY)
    STAGE = ("value kept in memory over ranges; src = (value, *ranges); arg = level", K, ANY_ARITY)
    FOLD = ("accumulate over ranges; src = (value, *ranges); arg = kind", K, ANY_ARITY)
    LOAD = ("value at an INDEX; src = (index[, alternative])", K | P, ANY_ARITY)
    STORE = ("write; src = (index, value)", K | P, 2)
    AFTER = ("src[0], once the others have run", K | P, ANY_ARITY)
    END = ("closes ranges; src = (effect, *ranges)", K | P, ANY_ARITY)
    SINK = ("all effects of a kernel", K | P, ANY_ARITY)
    IDIV = ("floor division of index integers, divisor > 0", J | K | P, 2)
    MOD = ("floor modulo of index integers, divisor > 0", J | K | P, 2)
    FMA = ("x*y + z with one rounding", K | P, 3)

    # --- program stage -------------------------------------------------------------------------------
    ACC = ("accumulator register; arg = (id, dtype, width)", P, ANY_ARITY)
    SPLAT = ("scalar to every lane; arg = width", P, 1)
    LANES = ("0, 1, ..., width-1; arg = width", P, 0)
    HFOLD = ("fold the lanes of a vector; arg = kind", P, 1)
    IF = ("run up to ENDIF when the condition holds", P, 1)
    ENDIF = ("closes IF", P, 1)


UNARY = frozenset(
    Op[n]
    for n in (
        "NEG ABS SIGN FLOOR CEIL ROUND TRUNC SQRT RSQRT CBRT EXP EXP2 EXPM1 LOG LOG2 LOG1P SIN COS "
        "TAN ASIN ACOS ATAN SINH COSH TANH ASINH ACOSH ATANH LOGISTIC ERF ERFC ERFINV LGAMMA "
        "DIGAMMA IS_FINITE NOT POPCOUNT CLZ REAL IMAG CONJ CAST BITCAST REDUCE_PRECISION"
    ).split()
)
COMPARISONS = frozenset({Op.CMPEQ, Op.CMPNE, Op.CMPLT, Op.CMPLE})
BINARY = COMPARISONS | frozenset(
    Op[n]
    for n in (
        "ADD SUB MUL DIV REM POW MAX MIN ATAN2 NEXTAFTER AND OR XOR SHL SHRL SHRA COMPLEX IDIV MOD"
    ).split()
)
ELEMENTWISE = UNARY | BINARY | {Op.WHERE}
STEPS = frozenset({Op.SIGN, Op.FLOOR, Op.CEIL, Op.ROUND, Op.TRUNC, Op.NEXTAFTER})
"""Ops whose derivative counts as zero everywhere: nothing is lost when a value of theirs is read."""
MOVEMENT = frozenset(
    {Op.RESHAPE, Op.PERMUTE, Op.EXPAND, Op.PAD, Op.SLICE, Op.FLIP, Op.CONCAT, Op.WINDOW}
)
IDENTITIES = frozenset(
    {Op.STOP_GRADIENT, Op.NAME, Op.OPTIMIZATION_BARRIER, Op.REMAT, Op.COPY, Op.PCAST}
)
# Ops whose leading sources are closed bodies, with how many of them there are.
BODIES = frozenset({Op.CALL, Op.SCAN, Op.WHILE, Op.COND})


def num_bodies(op: Op, arg: object) -> int:
    """How many leading sources of a node are closed bodies."""
    if op is Op.CALL or op is Op.SCAN:
        return 1
    if op is Op.WHILE:
        return 2
    return arg if op is Op.COND else 0  # type: ignore[return-value]
