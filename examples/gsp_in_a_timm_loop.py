"""Generalized sum pooling in a plain timm training loop, without the rest of lookalike.

    python examples/gsp_in_a_timm_loop.py my_pictures/ --pretrained

Trains on the first half of the classes and measures retrieval on the other half, which the model has never seen.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import timm
import torch
from torch.nn.functional import normalize
from torch.utils.data import DataLoader, Subset
from torchvision import transforms
from torchvision.datasets import ImageFolder

import lookalike


def main(argv: Sequence[str] | None = None) -> float:
    parser = argparse.ArgumentParser(description="Train a timm backbone with generalized sum pooling.")
    parser.add_argument("folder", type=Path, help="folder of class folders")
    parser.add_argument("--backbone", default="resnet18")
    parser.add_argument("--pretrained", action="store_true", help="let timm download ImageNet weights")
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--epochs", type=int, default=5)
    options = parser.parse_args(argv)
    torch.manual_seed(0)

    to_tensor = transforms.Compose([transforms.Resize((options.size, options.size)), transforms.ToTensor()])
    pictures = ImageFolder(str(options.folder), to_tensor)
    classes = len(pictures.classes) // 2
    train_set = Subset(pictures, [i for i, label in enumerate(pictures.targets) if label < classes])
    test_set = Subset(pictures, [i for i, label in enumerate(pictures.targets) if label >= classes])

    # The backbone gives a feature map, a 1x1 convolution reduces it, and GSP replaces average pooling.
    backbone: Any = timm.create_model(options.backbone, pretrained=options.pretrained, num_classes=0, global_pool="")
    project = torch.nn.Conv2d(backbone.num_features, options.dim, 1)
    pool = lookalike.GeneralizedSumPool(dim=options.dim, num_prototypes=64, keep=0.3, sharpness=5.0)
    model = torch.nn.Sequential(backbone, project, pool)
    loss = lookalike.objectives.create("proxy-anchor", classes=classes, dim=options.dim)

    optimizer = torch.optim.AdamW([*model.parameters(), *loss.parameters()], lr=1e-3)
    for epoch in range(options.epochs):
        model.train()
        for images, labels in DataLoader(train_set, batch_size=32, shuffle=True):
            value = loss(normalize(model(images)), labels).value
            optimizer.zero_grad()
            value.backward()
            optimizer.step()
        print(f"epoch {epoch + 1}: loss {value.item():.3f}")

    model.eval()
    with torch.inference_mode():
        batches = [(normalize(model(images)), labels) for images, labels in DataLoader(test_set, batch_size=32)]
    vectors = torch.cat([vectors for vectors, _ in batches])
    labels = torch.cat([labels for _, labels in batches])
    metrics = lookalike.retrieval_metrics(vectors, labels)
    print(f"unseen classes: MAP@R {metrics['MAP@R']:.3f}, P@1 {metrics['P@1']:.3f}")
    return metrics["MAP@R"]


if __name__ == "__main__":
    main()
