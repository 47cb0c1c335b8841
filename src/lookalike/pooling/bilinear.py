"""Second-order poolings: bilinear pooling and its compact approximation."""

from math import sqrt

import torch
from torch import Tensor
from torch.nn.functional import normalize

from lookalike._util.checks import check_count
from lookalike.pooling.base import Pooled, Pooling, pooled


class BilinearPool(Pooling):
    """Bilinear pooling into vectors (B, D (D + 1) / 2) of norm 1: which channels are active together.

        M = 1/n sum_j feature_j feature_j^T,    R_ab = root(M_ab),    vector = unit(R_aa and sqrt(2) R_ab for a < b)

    M is symmetric, so one triangle suffices. With the factor sqrt(2), inner products and norms are those of the full
    D x D matrix. ``root(x) = x / sqrt(|x| + 1e-8)`` has a finite gradient at zero.

    Reference: Lin, RoyChowdhury and Maji, "Bilinear CNN Models for Fine-grained Visual Recognition", ICCV 2015, with
    one network in both roles.

    Args:
        dim: Size D of the local features. 512 channels give 131,328 outputs.

    Examples:
        >>> BilinearPool(dim=2)(torch.tensor([[[2.0, 1.0]]])) ** 2      # 4, 2 * 2 and 1 of 9
        tensor([[0.4444, 0.4444, 0.1111]])
    """

    on_backbone = True
    has_weights = False
    places: Tensor
    factors: Tensor

    def __init__(self, dim: int) -> None:
        check_count("dim", dim)
        super().__init__(dim, dim * (dim + 1) // 2)
        first, second = torch.triu_indices(dim, dim)
        self.register_buffer("places", first * dim + second, persistent=False)
        self.register_buffer("factors", torch.where(first == second, 1.0, sqrt(2)), persistent=False)

    def _pool(self, bags: Tensor, mask: Tensor | None) -> Pooled:
        count = bags.shape[1] if mask is None else mask.sum(1).view(-1, 1, 1)
        products = torch.bmm(bags.mT, bags) / count
        roots = signed_root(products.flatten(1)[:, self.places])
        return pooled(normalize(roots * self.factors.to(bags.dtype)))


class CompactBilinearPool(Pooling):
    """Compact bilinear pooling into vectors (B, out_dim) of norm 1: approximates ``BilinearPool`` in fewer numbers.

        count sketch   C(x)_k = sum over the channels a with h(a) = k of s(a) x_a        h: channel -> bucket, s: +1, -1
        tensor sketch  T(x) = C_1(x) * C_2(x), circular convolution = ifft(fft(C_1(x)) fft(C_2(x)))
        vector = unit(root(1/n sum_j T(feature_j))),           root as in ``BilinearPool``

    Over random hashes h and signs s, T(x) . T(y) has the mean (x . y)^2, the inner product of x x^T and y y^T.

    Reference: Gao, Beijbom, Zhang and Darrell, "Compact Bilinear Pooling", CVPR 2016, with 8192 buckets. The tensor
    sketch is by Pham and Pagh, KDD 2013.

    Args:
        dim: Size D of the local features.
        out_dim: Size of the sketch.
        seed: Seed of the hashes. They are in the state dict, as vectors of different hashes are not comparable.

    Examples:
        >>> CompactBilinearPool(dim=32, out_dim=64)(torch.randn(4, 32, 7, 7)).shape
        torch.Size([4, 64])
    """

    on_backbone = True
    has_weights = False
    shown = ("out_dim", "seed")
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

    def sketch(self, bags: Tensor, mask: Tensor | None = None) -> Tensor:
        """Compute the mean tensor sketch.

        Args:
            bags: (B, N, D), zero where absent.
            mask: (B, N) bool, True where a feature is present.

        Returns:
            The sketch (B, out_dim).
        """
        count = bags.shape[1] if mask is None else mask.sum(1, keepdim=True)
        # Both methods give the same sketch. One moves D^2 products, the other transforms N out_dim values. Rounding
        # of the transform fills empty buckets, which the root magnifies to an error of 3e-4 in fp32 with D = 64.
        if self.dim**2 <= bags.shape[1] * self.out_dim:
            return self._sketch_products(bags) / count
        return self._sketch_by_fft(bags) / count

    def _pool(self, bags: Tensor, mask: Tensor | None) -> Pooled:
        return pooled(normalize(signed_root(self.sketch(bags, mask))))

    def _sketch_products(self, bags: Tensor) -> Tensor:
        """Add the products of channels a and b, with their signs, to the bucket h_1(a) + h_2(b)."""
        signs = self.signs[0, :, None] * self.signs[1]
        buckets = (self.buckets[0, :, None] + self.buckets[1]) % self.out_dim
        products = torch.bmm(bags.mT, bags) * signs.to(bags.dtype)
        return bags.new_zeros(bags.shape[0], self.out_dim).index_add(1, buckets.flatten(), products.flatten(1))

    def _sketch_by_fft(self, bags: Tensor) -> Tensor:
        return torch.fft.irfft((self._spectrum(bags, 0) * self._spectrum(bags, 1)).sum(1), n=self.out_dim)

    def _spectrum(self, bags: Tensor, sketch: int) -> Tensor:
        """The transform (B, N, out_dim // 2 + 1) of one of the two count sketches."""
        signed = bags * self.signs[sketch].to(bags.dtype)
        counts = bags.new_zeros(*bags.shape[:2], self.out_dim).index_add(2, self.buckets[sketch], signed)
        return torch.fft.rfft(counts)


def signed_root(x: Tensor) -> Tensor:
    """Compute sign(x) sqrt(|x|), replaced by a line through zero for |x| below 1e-8.

    Examples:
        >>> signed_root(torch.tensor([4.0, 0.0, -9.0]))
        tensor([ 2.,  0., -3.])
    """
    return x / (x.abs() + 1e-8).sqrt()
