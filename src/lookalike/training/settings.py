"""All settings of a training run, with their help texts and bounds.

The command line, YAML files and ``settings.yaml`` of a run use the same names. None: the value is chosen when the
run starts, from the data and the machine, see ``lookalike.training.resolve``. ``settings.yaml`` has the final values.
"""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

from lookalike._util.settings import check_settings, setting
from lookalike.inference.engine_name import ENGINE_HELP, EngineName

Precision = Literal["auto", "32-true", "bf16-mixed", "16-mixed"]


@dataclass
class Settings:
    """Settings of a training run; ``lookalike train --help`` explains them."""

    data: str | None = setting(None, "a folder of class folders, a CSV, a data set (folder or name:folder), or glyphs")
    out: Path | None = setting(None, "folder of the run; it must not exist yet, unless with --resume")
    resume: bool = setting(False, "continue the run in --out from its last saved state")
    seed: int = setting(0, "seed of the initial weights, the batches and the augmentation", least=0, below=2**63)
    strict: bool = setting(False, "fail if any picture cannot be read, instead of leaving it out")
    check: bool = setting(True, "decode every picture once before training starts, to find the unreadable ones")

    backbone: str = setting(
        "efficientnet_lite0", "any timm model, bn_inception, resnet20, bottleneck20 or resnetv2-20", group="the model"
    )
    weights: str = setting(
        "auto",
        "weights of the backbone: auto (bundled), none (random), timm (timm downloads them), a run, or a file; "
        "see lookalike weights",
    )
    dim: int | None = setting(128, "size of the embedding; null: no projection", least=1)
    pooling: str = setting("gsp", "how local features become one vector: gsp, average, max, gem, attention, ...")
    pooling_settings: dict[str, Any] = setting({}, "settings of the pooling, e.g. --pooling-settings.keep 0.3")
    normalise: Literal["l2", "clip", "none"] | None = setting(
        None, "last step of the embedding; null: clip (into the unit ball) with --ccp, else l2"
    )
    size: int | None = setting(None, "side of the input in pixels; null: the backbone's own", least=1)
    resize: int | None = setting(
        None, "shorter side of a picture before it is cropped to size; null: in proportion", least=1
    )
    freeze_backbone: bool | None = setting(
        None,
        "train the head alone, from cached features (and the last stages, with --train-stages); "
        "default: yes without a GPU if weights are available",
    )
    freeze_batch_norm: bool | None = setting(None, "do not train batch norm; default: yes with pretrained weights")
    train_stages: int | None = setting(
        None,
        "number of stages of the backbone to fine-tune, counted from the last; with --freeze-backbone from cached maps "
        "of the stages before, null: none; without, null: all",
        least=0,
    )
    start: Literal["pca", "random", "glorot"] | None = setting(
        None,
        "initial projection: principal directions of the features (default with pretrained weights), random, "
        "or glorot (random, uniform, as the papers' code)",
    )
    median_norm: float = setting(
        2.0, "median norm of local features after the pca start; GSP clips at its radius, which is 1", above=0
    )

    prototypes_from: Literal["pictures", "places"] = setting(
        "pictures", "with the pca start, choose prototypes from averaged pictures, or from single local features"
    )

    loss: str = setting(
        "multi-similarity",
        "circle, contrastive (c1), contrastive-distance (c2), libc, lifted-structure, lifted-structure-song, margin, "
        "multi-similarity (ms), n-pair, proxy-anchor, proxy-nca, proxy-nca++, soft-triple or triplet",
        group="the loss",
    )
    preset: Literal["cub", "cars", "inshop", "sop", "paper"] | None = setting(
        None,
        "settings of loss and GSP that the papers use for a data set; paper: for other data, with the loss's defaults",
    )
    loss_settings: dict[str, Any] = setting({}, "settings of the loss, e.g. --loss-settings.margin 0.5")

    zero_shot: float = setting(
        0.0,
        "share of the zero-shot loss in the total; the papers use 0.1; 0: none",
        group="additions to the loss",
        least=0,
        below=1,
    )
    zero_shot_settings: dict[str, Any] = setting({}, "settings of the zero-shot loss: ridge, scale and printed")
    memory: int = setting(0, "batches in a cross-batch memory; 0: none", least=0)
    memory_form: Literal["official", "distinct"] = setting(
        "official", "official: enqueue the batch, compare with all of a full memory; distinct: every pair counts once"
    )
    memory_start: int = setting(1000, "steps before the memory is used; the official form then fills it first", least=0)
    centres: float = setting(0.0, "weight of the regulariser that spreads class centres; 0: none", least=0)
    centres_settings: dict[str, Any] = setting({}, "settings of the regulariser, e.g. --centres-settings.preset mhe-1")
    libc: float = setting(
        0.0, "weight of LIBC's two losses (messages between the pictures of a batch) beside the loss; 0: none", least=0
    )
    libc_settings: dict[str, Any] = setting({}, "settings of LIBC, e.g. --libc-settings.heads 8")
    message_passing: int = setting(
        0, "k-reciprocal neighbours between which a benchmark passes LIBC's messages at test; 0: none", least=0
    )
    ccp: bool = setting(False, "chance-constrained programming: a sequence of proxy problems; embeddings are clipped")
    ccp_proxies: int = setting(8, "proxies of each class", least=1)
    ccp_pool: int = setting(12, "pictures of each class that the proxies of a problem are chosen from", least=1)
    ccp_pull: float = setting(2e-4, "how strongly weights are pulled towards the last problem's solution", least=0)
    ccp_patience: int = setting(3, "evaluations without improvement that end a problem", least=1)
    ccp_in_batch: float = setting(0.0, "weight of the same loss inside the batch; the authors' code uses 0.1", least=0)
    ccp_printed: bool = setting(
        False,
        "begin as Algorithm 1 is printed: proxies start from random pictures, and the first problem has a pull, too; "
        "no: as the authors' code",
    )
    ccp_select: Literal["k-centre", "random"] = setting("k-centre", "how proxies are chosen from the pool")
    ccp_alternate: bool = setting(True, "solve a sequence of problems; no: only the first one")
    ccp_against: Literal["proxies", "samples"] = setting(
        "proxies", "compare with proxies, or with the chosen pictures, which pass through the model at every step"
    )

    batch_size: int = setting(
        32, "pictures per step, over all processes together", group="pictures and batches", least=1
    )
    per_class: int | None = setting(None, "pictures per class in a batch; null: suitable for the loss", least=1)
    reshape: bool = setting(
        False, "divide a batch into another number of classes and pictures per class at random in every epoch"
    )
    crop: Literal["area", "wide", "pixels", "none"] = setting(
        "area", "random crop: .16 to 1 of the area, wide (.08 to 1), pixels (sides of 40 to 256), or none"
    )
    flip: bool = setting(True, "mirror half of the training pictures")
    erase: float = setting(
        0.0, "share of the training pictures in which a random rectangle is erased", least=0, up_to=1
    )
    views: int = setting(
        1, "cached versions of each training picture with --freeze-backbone; the first is not augmented", least=1
    )
    workers: int | None = setting(None, "processes that read pictures; null: by the number of cores", least=0)
    cache: Path | None = setting(None, "folder of cached features; null: ~/.cache/lookalike, or LOOKALIKE_CACHE")
    validation: float = setting(
        0.25, "share of the classes held out to select the best weights; 0: none", least=0, below=1
    )
    validation_order: Literal["seeded", "contiguous"] = setting(
        "seeded", "held-out classes: drawn by seed, or the last ones"
    )

    steps: int = setting(1000, "maximum number of training steps", group="the optimiser", least=1)
    optimiser: Literal["adam", "adamw", "radam", "sgd"] = setting(
        "adam", "adam has L2 decay, adamw and radam decoupled decay, as in the papers"
    )
    lr: float | None = setting(
        None, "learning rate; null: 1e-3 for a random start, else small enough to keep the pca start", above=0
    )
    backbone_lr: float | None = setting(
        None,
        "rate of the backbone, as a multiple of lr; null: 1, but a rate of 1e-5 for stages "
        "with --freeze-backbone --train-stages",
        above=0,
    )
    pooling_lr: float | None = setting(
        None,
        "rate of the pooling's parameters, as a multiple of lr; null: 1 with --lr, --preset or a random start, else 25",
        above=0,
    )
    scalar_lr: float | None = setting(
        None,
        "rate of a pooling's single numbers (learnt keep and sharpness, GeM's power), as a multiple of lr; "
        "null: that of the pooling with --lr, --pooling-lr or --preset, else a rate of 0.005",
        above=0,
    )
    proxy_lr: float | None = setting(
        None, "rate of the loss's parameters, as a multiple of lr; null: as in its papers", above=0
    )
    label_lr: float = setting(1.0, "rate of the zero-shot loss's label embeddings, as a multiple of lr", above=0)
    weight_decay: float = setting(1e-4, "weight decay; not applied to batch norm and biases", least=0)
    decay_all: bool = setting(False, "decay everything but batch norm: biases, proxies and label embeddings, too")
    betas: tuple[float, float] = setting(
        (0.9, 0.999), "betas of adam, adamw and radam; the first is the momentum of sgd", least=0, below=1
    )
    schedule: Literal["constant", "cosine", "plateau"] = setting("constant", "learning rate schedule")
    plateau_patience: int = setting(
        5, "evaluations without improvement that lower the rate on a plateau; without validation, of the loss", least=1
    )
    min_delta: float = setting(0.0, "gain of the monitored metric that counts as improvement on a plateau", least=0)
    min_lr: float = setting(0.0, "smallest learning rate on a plateau", least=0)
    warm_up: int | None = setting(
        None, "first steps, in which a pretrained backbone is not trained; null: as in the papers of the loss", least=0
    )
    restarts: tuple[int, ...] = setting(
        (), "steps after which training restarts from the best weights so far with a lower rate: --restart-lr", least=1
    )
    restart_lr: Literal["initial", "current"] = setting(
        "current", "rate after a restart: a tenth of the first rate (initial) or of the rate before (current)"
    )
    accumulate: int = setting(1, "batches per step; their gradients are averaged", least=1)
    clip_norm: float | None = setting(10.0, "largest norm of the gradient; null: no limit", above=0)
    clip_value: float | None = setting(None, "largest entry of a gradient; null: no limit", above=0)
    ema: float = setting(
        0.0,
        "decay of an exponential moving average of the weights, which is evaluated and saved; 0: none",
        least=0,
        below=1,
    )

    evaluate_every: int = setting(100, "steps between evaluations", group="evaluation", least=1)
    patience: int | None = setting(10, "evaluations without improvement that stop the run; null: never", least=1)
    monitor: Literal["MAP@R", "P@1", "P@R"] = setting("MAP@R", "metric that selects the best weights")
    view: Literal["whole", "crop"] | None = setting(
        None,
        "what lookalike index sees of a picture with this model: whole, or crop: only its centre, as in training; "
        "null: whole if a tenth of the pictures are longer than 2:1",
    )
    count_start: bool = setting(True, "the evaluation before the first step may be the best one")
    save_every: int | None = setting(None, "steps between saved states; null: at every evaluation", least=1)
    log_every: int = setting(10, "steps between rows of metrics.csv", least=1)

    device: str = setting("auto", "auto, cpu, cuda, mps", group="the machine")
    devices: int = setting(1, "processes on this machine; torchrun overrides it", least=1)
    nodes: int = setting(1, "number of machines", least=1)
    engine: EngineName = setting("auto", ENGINE_HELP)
    precision: Precision = setting("auto", "auto: bf16-mixed on CUDA, else 32-true")

    def __post_init__(self) -> None:
        check_settings(self)
        if self.start == "pca" and self.dim is None:
            raise ValueError("start pca needs a projection: set dim, or set start to random")

    @property
    def head_only(self) -> bool:
        """Whether no stage of the backbone trains."""
        return bool(self.freeze_backbone) and not self.train_stages


# Settings that may change when a run is resumed: they do not affect steps that were already done.
FREE_ON_RESUME = frozenset(
    {
        "out",
        "resume",
        "steps",
        "patience",
        "workers",
        "cache",
        "device",
        "devices",
        "nodes",
        "engine",
        "save_every",
        "check",
        "strict",
        "view",
    }
)


def names() -> list[str]:
    """Return the names of all settings, in order."""
    return [entry.name for entry in fields(Settings)]
