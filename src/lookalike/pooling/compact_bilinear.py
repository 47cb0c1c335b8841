"""Compact bilinear pooling: inner products of bilinear pooling, nearly, in far fewer numbers.

    count sketch   C(x)_k = sum over the channels a with h(a) = k of s(a) x_a        h: channel -> bucket, s: +1 or -1
    tensor sketch  T(x) = C_1(x) * C_2(x), circular convolution = ifft(fft(C_1(x)) fft(C_2(x)))
    vector = unit(root(1/n sum_j T(feature_j))),           root as in lookalike.pooling.bilinear

Over random hashes h and signs s, T(x) . T(y) has the mean (x . y)^2, which is the inner product of x x^T and y y^T.
There are two ways to it. The transform is linear, so a bag needs one inverse transform, of the mean; or, as T(x) is
linear in x x^T, the mean of x_a x_b goes to the bucket h_1(a) + h_2(b), modulo their number, with the sign
s_1(a) s_2(b). The second has D^2 numbers to place where the first has n out_dim to transform, and the smaller is taken:
at 512 channels, 49 places and 8192 buckets it is the second. The root magnifies what rounding leaves of the first in a
bucket that is empty: in fp32 a vector of 64 channels, which fill half of 8192 buckets, is off by 3e-4 of its norm.

Reference: Gao, Beijbom, Zhang and Darrell, "Compact Bilinear Pooling", CVPR 2016 (the tensor sketch is by Pham and
Pagh, KDD 2013), with their 8192 numbers, fixed hashes and sum over the places, which unit() undoes.
"""

import torch
from torch import Tensor
from torch.nn.functional import normalize

from lookalike._util.checks import check_count
from lookalike.pooling.base import Pooled, Pooling, pooled
from lookalike.pooling.bilinear import signed_root


class CompactBilinearPool(Pooling):
    """Pool local features (B, N, D) into vectors (B, out_dim) of norm 1.

    dim: D.  out_dim: the size of the sketch.  seed: of the hashes. They are part of the state dict, as vectors of
    different hashes cannot be compared.

    >>> CompactBilinearPool(dim=32, out_dim=64)(torch.randn(4, 32, 7, 7)).shape
    torch.Size([4, 64])
    """

    on_backbone = True
    has_weights = False
    buckets: Tensor
    signs: Tensor

    def __init__(self, dim: int, out_dim: int = 8192, seed: int = 0) -> None:
        check_count("out_dim", out_dim)
        check_count("seed", seed, least=0)
        super().__init__(dim, out_dim)
        self.seed = seed
        generator = torch.Generator().manual_seed(seed)
        self.register_buffer("buckets", torch.randint(out_dim, (2, dim), generator=generator))
        self.register_buffer("signs", torch.randint(2, (2, dim), generator=generator) * 2.0 - 1)

    def extra_repr(self) -> str:
        return f"dim={self.dim}, out_dim={self.out_dim}, seed={self.seed}"

    def sketch(self, bags: Tensor, mask: Tensor | None = None) -> Tensor:
        """The mean tensor sketch (B, out_dim) of bags (B, N, D) that are zero where absent."""
        count = bags.shape[1] if mask is None else mask.sum(1, keepdim=True)
        way = self._placed if self.dim**2 <= bags.shape[1] * self.out_dim else self._transformed
        return way(bags) / count

    def _pool(self, bags: Tensor, mask: Tensor | None) -> Pooled:
        return pooled(normalize(signed_root(self.sketch(bags, mask))))

    def _placed(self, bags: Tensor) -> Tensor:
        signs = self.signs[0, :, None] * self.signs[1]
        buckets = (self.buckets[0, :, None] + self.buckets[1]) % self.out_dim
        products = torch.bmm(bags.mT, bags) * signs.to(bags.dtype)
        return bags.new_zeros(bags.shape[0], self.out_dim).index_add(1, buckets.flatten(), products.flatten(1))

    def _transformed(self, bags: Tensor) -> Tensor:
        first, second = (self._spectrum(bags, which) for which in range(2))
        return torch.fft.irfft((first * second).sum(1), n=self.out_dim)

    def _spectrum(self, bags: Tensor, which: int) -> Tensor:
        """The transform (B, N, out_dim // 2 + 1) of one of the two count sketches."""
        signed = bags * self.signs[which].to(bags.dtype)
        sketch = bags.new_zeros(*bags.shape[:2], self.out_dim).index_add(2, self.buckets[which], signed)
        return torch.fft.rfft(sketch)
