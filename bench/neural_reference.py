"""The two example neural networks in PyTorch, float32, implemented independently: the reference for Holdfast's curves.

Same sizes, optimizer, schedule, dropout and distribution of initial weights; own random numbers and own autograd.
"""

import math
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn


def evenly(*shape: int, reach: float) -> nn.Parameter:
    return nn.Parameter((torch.rand(*shape) * 2 - 1) * reach)


class Digits(nn.Module):
    """64 pixels, 128 and 64 hidden, 10 scores."""

    def __init__(self) -> None:
        super().__init__()
        sizes = [64, 128, 64, 10]
        self.weights = nn.ParameterList([evenly(a, b, reach=1 / math.sqrt(a)) for a, b in pairwise(sizes)])
        self.biases = nn.ParameterList([nn.Parameter(torch.zeros(b)) for b in sizes[1:]])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for i, (w, b) in enumerate(zip(self.weights, self.biases, strict=True)):
            x = x @ w + b
            if i < 2:
                x = F.dropout(F.gelu(x, approximate="tanh"), 0.1, self.training)
        return x


class RmsNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * self.gain


class Block(nn.Module):
    def __init__(self, width: int, heads: int, gates: int) -> None:
        super().__init__()
        reach = 1 / math.sqrt(width)
        self.heads = heads
        self.norm1, self.norm2 = RmsNorm(width), RmsNorm(width)
        self.qkv, self.out = evenly(width, 3 * width, reach=reach), evenly(width, width, reach=reach)
        self.gates = evenly(width, gates, reach=reach)
        self.back = evenly(gates // 2, width, reach=1 / math.sqrt(gates // 2))

    def look(self, x: torch.Tensor) -> torch.Tensor:
        batch, n, width = x.shape
        q, k, v = (p.reshape(batch, n, self.heads, -1).transpose(1, 2) for p in (x @ self.qkv).split(width, -1))
        half = q.shape[-1] // 2
        pace = 10000.0 ** (-torch.arange(half, device=x.device) / half)
        angle = torch.arange(n, device=x.device)[:, None] * pace
        cos, sin = angle.cos(), angle.sin()

        def turned(t: torch.Tensor) -> torch.Tensor:
            a, b = t[..., :half], t[..., half:]
            return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)

        mixed = F.scaled_dot_product_attention(turned(q), turned(k), v, is_causal=True)
        return mixed.transpose(1, 2).reshape(batch, n, width) @ self.out

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + F.dropout(self.look(self.norm1(x)), 0.1, self.training)
        a, b = (self.norm2(x) @ self.gates).chunk(2, -1)
        return x + F.dropout((F.silu(a) * b) @ self.back, 0.1, self.training)


class Letters(nn.Module):
    """An embedding, blocks of attention and gated layers, a norm, and the embedding again as head."""

    def __init__(self, letters: int = 64, width: int = 64, heads: int = 4, gates: int = 256, depth: int = 2) -> None:
        super().__init__()
        self.embed = evenly(letters, width, reach=0.1 * math.sqrt(3))
        self.blocks = nn.ModuleList([Block(width, heads, gates) for _ in range(depth)])
        self.gain, self.bias = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed[tokens]
        for block in self.blocks:
            x = block(x)
        return F.layer_norm(x, (x.shape[-1],), self.gain, self.bias, 1e-5) @ self.embed.T


def train(model: nn.Module, batches: Any, training: Any, tell: Any) -> None:
    """Steps over (inputs, labels), with the optimizer settings of the neural network."""
    matrices = [p for p in model.parameters() if p.dim() > 1]
    vectors = [p for p in model.parameters() if p.dim() <= 1]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": training.decay}, {"params": vectors, "weight_decay": 0.0}],
        lr=training.rate, betas=training.betas, eps=training.epsilon,
    )  # fmt: skip
    for step, (x, y) in enumerate(batches):
        if step < training.warmup:
            rate = training.rate * (step + 1) / training.warmup
        else:
            done = min((step - training.warmup) / max(training.steps - training.warmup, 1), 1.0)
            left = 0.5 * (1 + math.cos(math.pi * done)) if training.schedule == "cosine" else 1.0
            rate = training.rate * (training.floor + (1 - training.floor) * left)
        for group in optimizer.param_groups:
            group["lr"] = rate
        scores = model(x)
        loss = F.cross_entropy(scores.reshape(-1, scores.shape[-1]), y.reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        if training.clip:
            nn.utils.clip_grad_norm_(model.parameters(), training.clip)
        optimizer.step()
        tell(loss.item())
