"""The larger programs: one file per family of peers, sizes and starting weights in `data`.

Every model is a function `(peer, *arrays) -> step`; `step()` does one training step and returns the
loss before it. All peers start from the same weights and see the same batch.
"""
