"""The Triton kernels: `draw` fills the rows, `warp` makes the batch, `blur` and `gray_sums` run only when asked for.

The same maths stands in torch in `draws.py` and `reference.py`; tests hold the two together.
"""
