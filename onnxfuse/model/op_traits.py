"""What may be said of an op by its name alone: one row an op, one word a trait.

Ops are those of ai.onnx, those that rules define, and those of terms alone (Input, Absent, Integers, Output, Repeat).
A new trait is a word in the rows it fits, and a constant below; a new op is a row.  What holds of a runtime and not of
an op (which kernels there are) stands in `targets`, and what a kernel computes in `kernels`.
"""

from __future__ import annotations

from collections.abc import Mapping

IMPLIES: Mapping[str, tuple[str, ...]] = {
    "comparison": ("broadcast", "boolean"),
    "broadcast": ("elementwise", "row_by_row"),
    "unary": ("like_first", "elementwise", "row_by_row"),
    "reshape": ("view", "same_elements", "free"),
    "view": ("movement", "removable", "cheap", "monotonous"),
    "cheap": ("continuous",),
}
"""Traits → those that go with them, and need not be written."""

_ROWS = """
    Abs                              unary nonnegative moderate foldable continuous exact
    Absent                           free
    Acos                             transcendental
    Acosh                            transcendental
    Add                              broadcast commutative arithmetic removable score foldable common continuous
    And                              broadcast boolean commutative cheap foldable common
    Asin                             transcendental
    Asinh                            transcendental
    Atan                             unary transcendental
    Atanh                            transcendental
    Attention                        product moderate kernel
    AttentionGrad                    second_launch summed_bias
    BatchNormalization               like_first foldable
    Bernoulli                        random
    BiasGelu                         like_first elementwise row_by_row
    BitShift                         broadcast
    BitwiseAnd                       broadcast
    BitwiseOr                        broadcast
    Cast                             unary same_elements movement removable cheap foldable declares_dtype common cast
    CastLike                         elementwise same_elements movement declares_dtype cast
    Ceil                             unary foldable rounding exact
    Celu                             unary transcendental
    Clip                             unary foldable partial continuous exact
    Concat                           removable cheap foldable exact
    Constant                         cheap free declares_dtype exact
    ConstantOfShape                  foldable growing declares_dtype exact
    Conv                             product quantizable moderate foldable partial
    ConvInteger                      product
    ConvIntegerToFloat               product
    ConvTranspose                    product quantizable
    Cos                              unary moderate foldable transcendental
    Cosh                             unary transcendental
    CumSum                           like_first foldable wide_range
    Div                              broadcast arithmetic removable foldable common continuous
    Dropout                          like_first same_elements removable
    Elu                              unary transcendental
    Equal                            comparison commutative foldable
    Erf                              unary moderate foldable transcendental
    Exp                              unary nonnegative moderate foldable continuous transcendental wide_range
    Expand                           view foldable growing common
    EyeLike                          declares_dtype exact
    FastGelu                         unary
    Flatten                          reshape
    Floor                            unary foldable rounding exact
    FusedConv                        product
    FusedMatMul                      product
    Gather                           movement removable cheap foldable
    GatherElements                   movement foldable
    GatherND                         movement removable cheap foldable
    Gelu                             unary moderate transcendental
    Gemm                             product quantizable moderate matrix_product
    Greater                          comparison foldable
    GreaterOrEqual                   comparison foldable
    GroupNormalization               like_first kernel
    GroupNormalizationGrad           second_launch
    HardSigmoid                      unary
    HardSwish                        unary transcendental
    Hardmax                          like_first coerced exact
    Identity                         reshape like_first elementwise foldable
    If                               control_flow
    Input                            free
    InstanceNormalization            like_first kernel
    Integers                         free
    IsInf                            unary boolean
    IsNaN                            unary boolean score foldable
    LRN                              like_first
    LayerNormalization               row_by_row moderate kernel foldable partial
    LayerNormalizationGrad           second_launch
    LeakyRelu                        unary
    Less                             comparison foldable
    LinearAttention                  single_inside
    LessOrEqual                      comparison foldable
    Log                              unary foldable continuous transcendental wide_range
    LogSoftmax                       like_first row_by_row coerced moderate kernel
    Loop                             control_flow
    LpNormalization                  like_first
    MatMul                           row_by_row product quantizable moderate foldable common matrix_product
    MatMulInteger                    product
    MatMulIntegerToFloat             product integer
    MatMulNBits                      product integer
    Max                              broadcast commutative foldable continuous exact
    Mean                             broadcast foldable
    MeanVarianceNormalization        like_first
    Min                              broadcast commutative foldable continuous exact
    Mish                             unary transcendental
    Mod                              broadcast foldable
    Mul                              broadcast commutative arithmetic removable score foldable common continuous
    Multinomial                      random
    Neg                              unary arithmetic foldable common continuous exact
    Not                              unary boolean cheap foldable common
    OneHot                           growing declares_dtype exact
    Or                               broadcast boolean commutative foldable common
    Output                           free
    PRelu                            like_first elementwise
    Pad                              movement removable foldable growing
    Pow                              broadcast arithmetic square foldable common continuous transcendental wide_range
    QuickGelu                        unary
    RMSNormalization                 like_first row_by_row moderate kernel
    RMSNormalizationGrad             second_launch
    RandomNormal                     random
    RandomNormalLike                 declares_dtype random
    RandomUniform                    random
    RandomUniformLike                declares_dtype random
    Range                            foldable growing exact
    Reciprocal                       unary arithmetic foldable continuous
    ReduceL1                         nonnegative
    ReduceL2                         square nonnegative wide_range
    ReduceLogSum                     wide_range
    ReduceLogSumExp                  foldable wide_range
    ReduceMax                        monotonous foldable exact
    ReduceMean                       monotonous foldable
    ReduceMin                        monotonous foldable exact
    ReduceProd                       foldable wide_range
    ReduceSum                        monotonous foldable
    ReduceSumSquare                  square nonnegative wide_range
    Relu                             unary nonnegative moderate foldable exact
    Repeat                           view foldable growing
    Reshape                          reshape score foldable common
    Resize                           foldable partial growing
    RotaryEmbedding                  like_first moderate kernel
    Round                            unary foldable rounding exact
    SafeSoftmax                      like_first row_by_row softmax score moderate kernel
    Scan                             control_flow
    ScatterElements                  like_first
    ScatterND                        like_first foldable
    Selu                             unary transcendental
    Shape                            cheap free shape_query foldable
    Shrink                           unary
    Sigmoid                          unary nonnegative moderate foldable transcendental
    Sign                             unary foldable exact
    Sin                              unary moderate foldable transcendental
    Sinh                             unary transcendental
    Size                             shape_query moderate foldable
    SkipLayerNormalization           like_first row_by_row moderate kernel
    SkipSimplifiedLayerNormalization like_first row_by_row moderate kernel
    Slice                            view foldable
    Softmax                          like_first row_by_row softmax coerced score nonnegative moderate kernel foldable
    Softplus                         unary nonnegative moderate transcendental
    Softsign                         unary
    Split                            movement removable cheap
    Sqrt                             unary monotonous moderate foldable continuous transcendental
    Squeeze                          reshape foldable
    Sub                              broadcast arithmetic removable foldable common continuous
    Sum                              broadcast arithmetic removable foldable common
    Swish                            unary transcendental
    Tan                              unary transcendental
    Tanh                             unary score moderate foldable transcendental
    ThresholdedRelu                  unary
    Tile                             movement removable foldable growing
    Transpose                        view same_elements foldable common
    Trilu                            like_first foldable exact
    Unsqueeze                        reshape foldable
    Where                            broadcast removable cheap score foldable common exact
    Xor                              broadcast boolean commutative foldable
"""


def _read(rows: str) -> dict[str, frozenset[str]]:
    """Op → its traits, those that others imply among them."""
    table = {}
    for op, *traits in map(str.split, rows.strip().splitlines()):
        for trait in traits:  # grows while it is read
            traits += (implied for implied in IMPLIES.get(trait, ()) if implied not in traits)
        table[op] = frozenset(traits)
    return table


TRAITS: Mapping[str, frozenset[str]] = _read(_ROWS)
"""Op → what is said of it."""


def _ops(trait: str) -> frozenset[str]:
    found = frozenset(op for op, traits in TRAITS.items() if trait in traits)
    assert found, f"no op is {trait}"
    return found


COMPARISONS = _ops("comparison")
"""Ops of two operands that answer which is larger, or whether they are equal."""
BROADCAST = _ops("broadcast")
"""Ops of several operands that are broadcast together; the first that is not a condition gives the type."""
UNARY = _ops("unary")
"""Ops of one tensor (and of numbers or attributes) that compute each element from the one at its place."""
LIKE_FIRST = _ops("like_first")
"""Ops whose result has the shape and the element type of their first input."""
ELEMENTWISE = _ops("elementwise")
"""Ops of which every element depends on the elements at its own place alone."""
ROW_BY_ROW = _ops("row_by_row")
"""Ops that compute the same for each index of a new first axis, as long as their own axes count from the end."""
BOOLEAN = _ops("boolean")
"""Ops whose result is true or false."""
COMMUTATIVE = _ops("commutative")
"""Ops of two operands, in either order."""
ARITHMETIC = _ops("arithmetic")
"""Ops that rules write with an operator."""
RESHAPES = _ops("reshape")
"""Ops that give the elements of their first input in the same order: nothing moves."""
VIEWS = _ops("view")
"""Ops that move, repeat or leave out elements of their first input, each by its place alone."""
SAME_ELEMENTS = _ops("same_elements")
"""Ops whose first output may have the elements of their first input, in another order at most."""
MOVEMENT = _ops("movement")
"""Ops of which every element is one of the first input, converted at most, or a fill."""
EXACT = _ops("exact")
"""Ops of which every element is an integer, one of an input or its opposite: nothing is rounded."""
CASTS = _ops("cast")
"""Ops that give their operand in another element type."""
REMOVABLE = _ops("removable")
"""Ops that may turn out to do nothing."""
CHEAP = _ops("cheap")
"""Ops that compute nothing worth saving."""
CONTROL_FLOW = _ops("control_flow")
"""Ops that run graphs which are attributes of theirs."""
TRANSCENDENTAL = _ops("transcendental")
"""Ops that cost as much as reading several elements."""
WIDE_RANGE = _ops("wide_range")
"""Ops of ordinary numbers whose results, or what they hold in between, half precision may have no room for."""
ROUNDING = _ops("rounding")
"""Ops that cut to integers, besides a Cast."""
CONTINUOUS = _ops("continuous")
"""Ops whose result stands at an integer exactly if their inputs are what they were: log(n / 8) / log(16) * 8 of T5's
positions is one for n = 16, or the next number below it, as its constants are rounded."""
FREE = _ops("free")
"""Ops that a runtime does not launch, and terms that no node computes."""
SHAPE_QUERIES = _ops("shape_query")
"""Ops that look at the shape of their input alone."""
PRODUCTS = _ops("product")
"""Products of matrices, bound by arithmetic: to compute one twice costs more than any launch saves."""
MATRIX_PRODUCTS = _ops("matrix_product")
"""Those of two matrices, or of many, that are nothing else."""
KERNELS = _ops("kernel")
"""What fusions of several steps make: where an exporter wrote one, it is one kernel already."""
QUANTIZABLE = _ops("quantizable")
"""Products of the second input with the first that quantizers know by what they are called."""
ON_INTEGERS = _ops("integer")
"""Products that onnxruntime computes on integers, be it from their function body."""
SOFTMAX = _ops("softmax")
"""Ops that make the weights of attention."""
COERCED = _ops("coerced")
"""Ops that made a matrix of their input before opset 13, and since then work along one axis."""
SCORES = _ops("score")
"""What may lie between a product of matrices and its use as attention scores."""
SECOND_LAUNCH = _ops("second_launch")
"""Ops whose second and third output take one more launch: sums over all rows, the gradients of keys and values."""
SUMMED_BIAS = _ops("summed_bias")
"""Ops whose fourth output, summed over `bias_axes`, takes one more launch, and if there are any a second for parts."""
SQUARES = _ops("square")
"""Ops that may multiply their first input by itself."""
NONNEGATIVE = _ops("nonnegative")
"""Ops that give nothing below 0, whatever they are given."""
MONOTONOUS = _ops("monotonous")
"""Ops of nothing negative that give nothing negative."""
MODERATE = _ops("moderate")
"""Ops whose results are not as low as what hides attention scores, whatever they are given."""
FOLDABLE = _ops("foldable")
"""Ops that onnxfuse.terms.fold evaluates."""
PARTIAL = _ops("partial")
"""Those of them that it evaluates without operands that are absent, too."""
GROWING = _ops("growing")
"""Ops whose result may be far larger than all that they are given."""
DECLARES_DTYPE = _ops("declares_dtype")
"""Ops whose result has the element type of an attribute, or of another input than the first real one."""
SINGLE_INSIDE = _ops("single_inside")
"""Ops of several outputs that compute in float32 whatever type they have, and round what they give."""
RANDOM = _ops("random")
"""Ops that draw numbers."""
COMMON = _ops("common")
"""Ops that every model has: a small pattern with such a root is nearly everywhere, which says nothing."""
NEUTRAL: Mapping[str, float] = {"Add": 0.0, "Mul": 1.0}
"""The ops whose chains are flat, and the number that changes nothing in each."""
