"""tinyjax.nn: activations, softmax, attention, initialisers (JAX's names)."""

from tinyjax.core.source import publish_functions as _publish_functions
from tinyjax.nn import initializers as initializers
from tinyjax.nn.activations import celu as celu
from tinyjax.nn.activations import elu as elu
from tinyjax.nn.activations import gelu as gelu
from tinyjax.nn.activations import glu as glu
from tinyjax.nn.activations import hard_sigmoid as hard_sigmoid
from tinyjax.nn.activations import hard_silu as hard_silu
from tinyjax.nn.activations import hard_swish as hard_swish
from tinyjax.nn.activations import hard_tanh as hard_tanh
from tinyjax.nn.activations import identity as identity
from tinyjax.nn.activations import leaky_relu as leaky_relu
from tinyjax.nn.activations import log1mexp as log1mexp
from tinyjax.nn.activations import log_sigmoid as log_sigmoid
from tinyjax.nn.activations import log_softmax as log_softmax
from tinyjax.nn.activations import logmeanexp as logmeanexp
from tinyjax.nn.activations import logsumexp as logsumexp
from tinyjax.nn.activations import mish as mish
from tinyjax.nn.activations import one_hot as one_hot
from tinyjax.nn.activations import relu as relu
from tinyjax.nn.activations import relu6 as relu6
from tinyjax.nn.activations import selu as selu
from tinyjax.nn.activations import sigmoid as sigmoid
from tinyjax.nn.activations import silu as silu
from tinyjax.nn.activations import soft_sign as soft_sign
from tinyjax.nn.activations import softmax as softmax
from tinyjax.nn.activations import softplus as softplus
from tinyjax.nn.activations import sparse_plus as sparse_plus
from tinyjax.nn.activations import sparse_sigmoid as sparse_sigmoid
from tinyjax.nn.activations import squareplus as squareplus
from tinyjax.nn.activations import standardize as standardize
from tinyjax.nn.activations import swish as swish
from tinyjax.nn.activations import tanh as tanh
from tinyjax.nn.attention import dot_product_attention as dot_product_attention

_publish_functions(globals())
