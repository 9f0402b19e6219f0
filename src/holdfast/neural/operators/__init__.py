"""The fixed set of operators of neural networks."""

from holdfast.neural.operators.attention import Attention
from holdfast.neural.operators.dense import Embedding, Linear, TiedHead
from holdfast.neural.operators.losses import CrossEntropy, Mse
from holdfast.neural.operators.norms import LayerNorm, RmsNorm, Softmax
from holdfast.neural.operators.operator import Misfit, Operator, Option, Parameter, Product, RunContext, Shape, Signal
from holdfast.neural.operators.pointwise import Add, Dropout, Gelu, Mask, Mul, Relu, Silu, Swiglu
from holdfast.neural.operators.shaping import Concat, Reshape, Split, Transpose

OPERATORS: dict[str, type[Operator]] = {
    operator.kind: operator
    for operator in (
        Add, Attention, Concat, CrossEntropy, Dropout, Embedding, Gelu, LayerNorm, Linear, Mask, Mse, Mul, Relu,
        Reshape, RmsNorm, Silu, Softmax, Split, Swiglu, TiedHead, Transpose,
    )
}  # fmt: skip
"""By their name in the description of a neural network."""

__all__ = ["OPERATORS", "Misfit", "Operator", "Option", "Parameter", "Product", "RunContext", "Shape", "Signal"]
