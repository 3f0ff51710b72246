"""A 3x3 convolution of 32 images of 56x56 from 64 to 64 channels."""

from __future__ import annotations

from benchmarks.row import Row, normals


def images_and_kernel():
    """NHWC images and an HWIO kernel; torch and tinygrad get their own order once, see below."""
    return normals((32, 56, 56, 64), (3, 3, 64, 64))


def jax_conv(jax, x, w):
    return jax.lax.conv_general_dilated(
        x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


def jax_gradients(jax, x, w):
    return jax.grad(lambda x, w: (jax_conv(jax, x, w) ** 2).sum(), argnums=(0, 1))(x, w)


def forward(peer, x, w):
    f = peer.jit(lambda x, w: jax_conv(peer.module, x, w))
    return lambda: f(x, w)


def backward(peer, x, w):
    f = peer.jit(lambda x, w: jax_gradients(peer.module, x, w))
    return lambda: f(x, w)


def channels_last(torch, x, w):
    """Views with torch's logical order over memory that is already NHWC."""
    w = w.permute(3, 2, 0, 1).contiguous(memory_format=torch.channels_last)
    return x.permute(0, 3, 1, 2), w


def torch_forward(peer, x, w):
    x, w = channels_last(peer.module, x, w)
    f = peer.jit(lambda x, w: peer.module.nn.functional.conv2d(x, w, padding=1))
    return lambda: f(x, w).permute(0, 2, 3, 1)


def torch_backward(peer, x, w):
    torch = peer.module
    x, w = (a.requires_grad_() for a in channels_last(torch, x, w))

    @peer.jit
    def loss(x, w):
        return (torch.nn.functional.conv2d(x, w, padding=1) ** 2).sum()

    def step():
        dx, dw = torch.autograd.grad(loss(x, w), (x, w))
        return dx.permute(0, 2, 3, 1), dw.permute(2, 3, 1, 0)

    return step


def tinygrad_forward(peer, x, w):
    x, w = x.permute(0, 3, 1, 2).contiguous().realize(), w.permute(3, 2, 0, 1).contiguous()
    f = peer.jit(lambda x, w: x.conv2d(w, padding=1))
    w = w.realize()
    return lambda: f(x, w).permute(0, 2, 3, 1)


def tinygrad_backward(peer, x, w):
    x, w = x.permute(0, 3, 1, 2).contiguous().realize(), w.permute(3, 2, 0, 1).contiguous()
    w = w.realize()
    f = peer.jit(lambda x, w: list((x.conv2d(w, padding=1) ** 2).sum().gradient(x, w)))

    def step():
        dx, dw = f(x, w)
        return dx.permute(0, 2, 3, 1), dw.permute(2, 3, 1, 0)

    return step


def row(name: str, jax, torch, tinygrad) -> Row:
    return Row(
        name,
        images_and_kernel,
        {"jax": jax, "torch": torch, "tinygrad": tinygrad},
        "0.95x",
        tolerance=1e-3,
        stateful=True,
    )


ROWS = [
    row("conv 3x3, 32x56x56x64", forward, torch_forward, tinygrad_forward),
    row("conv 3x3, 32x56x56x64 with backward", backward, torch_backward, tinygrad_backward),
]
