"""Architectures as people write them, small and with random weights."""

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn


class ResidualBlock(nn.Module):
    def __init__(self, i: int, o: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(i, o, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(o)
        self.conv2 = nn.Conv2d(o, o, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(o)
        self.relu = nn.ReLU(inplace=True)
        self.downsample: nn.Module | None = None
        if stride != 1 or i != o:
            self.downsample = nn.Sequential(nn.Conv2d(i, o, 1, stride, bias=False), nn.BatchNorm2d(o))

    def forward(self, x: Tensor) -> Tensor:
        identity = x if self.downsample is None else self.downsample(x)
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += identity
        return self.relu(out)


class ResNet18(nn.Module):
    """The shape of ResNet-18: four stages of two blocks."""

    def __init__(self, widths: tuple[int, ...] = (4, 6, 8, 10), classes: int = 5) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, widths[0], 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(widths[0])
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        before = widths[0]
        for stage, width in enumerate(widths, 1):
            blocks = ResidualBlock(before, width, 1 if stage == 1 else 2), ResidualBlock(width, width)
            setattr(self, f"layer{stage}", nn.Sequential(*blocks))
            before = width
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(before, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(F.relu(self.bn1(self.conv1(x)), inplace=True))
        for stage in range(1, 5):
            x = getattr(self, f"layer{stage}")(x)
        return self.fc(torch.flatten(self.avgpool(x), 1))


class VGG(nn.Module):
    """With batch norms."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        before = 3
        for width in (4, 0, 6, 6, 0):
            if width:
                layers += [
                    nn.Conv2d(before, width, 3, padding=1),
                    nn.BatchNorm2d(width),
                    nn.ReLU(inplace=True),
                ]
                before = width
            else:
                layers.append(nn.MaxPool2d(2, 2))
        self.features = nn.Sequential(*layers)
        self.avgpool = nn.AdaptiveAvgPool2d((3, 3))
        self.classifier = nn.Sequential(nn.Linear(54, 12), nn.ReLU(True), nn.Dropout(), nn.Linear(12, 5))

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(torch.flatten(self.avgpool(self.features(x)), 1))


class UNet(nn.Module):
    """Two scales below the image; what goes up meets what went down."""

    def __init__(self) -> None:
        super().__init__()
        self.down1, self.down2 = nn.Conv2d(2, 3, 3, padding=1), nn.Conv2d(3, 4, 3, padding=1)
        self.middle = nn.Conv2d(4, 5, 3, padding=1)
        self.up2, self.conv2 = nn.ConvTranspose2d(5, 4, 2, 2), nn.Conv2d(8, 4, 3, padding=1)
        self.conv1, self.head = nn.Conv2d(7, 3, 3, padding=1), nn.Conv2d(3, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        fine = F.relu(self.down1(x))
        coarse = F.relu(self.down2(F.max_pool2d(fine, 2)))
        middle = F.relu(self.middle(F.max_pool2d(coarse, 2)))
        up = F.relu(self.conv2(torch.cat([self.up2(middle), coarse], 1)))
        up = F.interpolate(up, scale_factor=2, mode="nearest")
        return self.head(F.relu(self.conv1(torch.cat([up, fine], 1))))


class InvertedResidual(nn.Module):
    """As torchvision names its parts, so that its weights can be loaded."""

    def __init__(self, i: int, o: int, stride: int, expansion: int) -> None:
        super().__init__()
        hidden = i * expansion
        layers: list[nn.Module] = []
        if expansion != 1:
            layers.append(convolution(i, hidden, 1))
        layers += [
            convolution(hidden, hidden, 3, stride, hidden),
            nn.Conv2d(hidden, o, 1, bias=False),
            nn.BatchNorm2d(o),
        ]
        self.conv = nn.Sequential(*layers)
        self.residual = stride == 1 and i == o

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv(x) if self.residual else self.conv(x)


def convolution(i: int, o: int, kernel: int, stride: int = 1, groups: int = 1) -> nn.Sequential:
    padding = (kernel - 1) // 2
    return nn.Sequential(
        nn.Conv2d(i, o, kernel, stride, padding, groups=groups, bias=False),
        nn.BatchNorm2d(o),
        nn.ReLU6(inplace=True),
    )


FULL = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)
"""MobileNetV2's stages: expansion, channels, blocks, stride."""


class MobileNetV2(nn.Module):
    def __init__(
        self,
        stages: tuple[tuple[int, ...], ...] = ((1, 4, 1, 1), (3, 5, 2, 2)),
        ends: tuple[int, int] = (6, 9),
        classes: int = 5,
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = [convolution(3, ends[0], 3, 2)]
        before = ends[0]
        for expansion, width, blocks, stride in stages:
            for k in range(blocks):
                layers.append(InvertedResidual(before, width, stride if k == 0 else 1, expansion))
                before = width
        layers.append(convolution(before, ends[1], 1))
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(ends[1], classes))

    def forward(self, x: Tensor) -> Tensor:
        x = F.adaptive_avg_pool2d(self.features(x), (1, 1))
        return self.classifier(torch.flatten(x, 1))


def encoder(norm_first: bool) -> nn.TransformerEncoder:
    layer = nn.TransformerEncoderLayer(12, 3, 20, batch_first=True, norm_first=norm_first, activation="gelu")
    return nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)


def with_statistics(module: nn.Module) -> nn.Module:
    """In float64, evaluation mode, and with batch norms that do something."""
    for part in module.modules():
        if isinstance(part, nn.modules.batchnorm._BatchNorm):
            assert part.running_mean is not None
            assert part.running_var is not None
            part.running_mean.normal_()
            part.running_var.uniform_(0.5, 2)
            part.weight.data.uniform_(0.5, 2)
            part.bias.data.normal_()
    return module.double().eval()
