"""The toy map: a linear programme drops pixels of the object, the entropy-smoothed problem keeps them all.

A map of 10 x 10 x 3 features shows a 5 x 5 reddish and a 5 x 5 bluish patch on green; the prototypes are pure
red and pure blue. Half of the map is object, but only a share ``keep`` (mu) = 0.2 of it is asked for. The weights

    p_j = (1/n - residual_j) / keep

come from the linear programme (P1) and from the smoothed problem (P2) over a range of sharpness (epsilon).

Reference: Figure 5.2 of Gürbüz's thesis, which gives neither its noise nor its sharpness.
"""

from dataclasses import dataclass

from lookalike_studies.framework.claims import JudgedClaim
from lookalike_studies.framework.context import Context
from lookalike_studies.framework.study import Study, StudyResult, StudySettings, setting
from lookalike_studies.toy.claims import PAPER, describe, judge, spread_table
from lookalike_studies.toy.plots import draw
from lookalike_studies.toy.weights import (
    PROGRAMME,
    measure_spread,
    smoothed,
    starved_by_noise,
    toy_cost,
    toy_map,
    toy_weights,
)


@dataclass(frozen=True)
class Toy(StudySettings):
    """Settings of the study."""

    keep: float = setting("share of the map to keep, mu; half of it is object", above=0, up_to=1)
    sharpness: float = setting("epsilon of the smoothed weights", above=0, up_to=1e6)
    noise: float = setting("standard deviation of the pixels' noise", above=0, up_to=1)
    seed: int = setting("of the noise", least=0)
    maps: int = setting("other maps for each noise, to see how much it matters", budget=True, least=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        toy_weights(toy_cost(toy_map(self.seed, self.noise)[0]), self.keep, ())  # refuses a keep that is too small


def run(settings: Toy, _: Context) -> StudyResult:
    """Compute all weights and compare them."""
    keep, sharpness = settings.keep, settings.sharpness
    ladder = (sharpness / 10, sharpness, sharpness * 10, sharpness * 100)
    features, is_object = toy_map(settings.seed, settings.noise)
    weights = toy_weights(toy_cost(features), keep, ladder)
    spreads = {name: measure_spread(values, is_object) for name, values in weights.items()}
    programme, smooth = spreads[PROGRAMME], spreads[smoothed(sharpness)]
    pixels = int(is_object.sum())
    verdict, reason = judge(programme, smooth)
    here = f"{reason}: of {pixels} object pixels the programme drops {programme.dropped}; smoothed, each has "
    here += f"{smooth.least:.2f} to {smooth.most:.2f} fair shares"
    by_noise = starved_by_noise(keep, sharpness, settings.noise, settings.maps)
    means = ", ".join(f"{count:g} at {noise:g}" for noise, count in by_noise.items())
    noise_note = (
        "The noise of the pixels is our choice, and matters. Object pixels starved when smoothed, mean over "
        f"{settings.maps} other maps for each noise: {means}."
    )
    figure = draw(features, is_object, weights, keep, smoothed(sharpness))
    return StudyResult(
        claims=[JudgedClaim(PAPER, here, verdict)],
        figures={"toy": (figure, "Where the pooling weights go")},
        tables={"spread": spread_table(spreads)},
        numbers={
            "true_share": float(is_object.mean()),
            "weights": {name: spread._asdict() for name, spread in spreads.items()},
            "mean_starved_by_noise": by_noise,
        },
        notes=[*describe(spreads, pixels, keep, ladder), noise_note],
    )


STUDY = Study(
    name="toy",
    title="The toy map: a linear programme drops pixels of the object, the smoothed problem keeps them all",
    about="A map of 10 x 10 pixels shows a reddish and a bluish patch on green, half of the map together. The "
    "prototypes are red and blue, and less than the object's share is to be kept. The weights come from the linear "
    "programme and from the entropy-smoothed problem, over a range of sharpness.",
    source="Figure 5.2 of Gürbüz's thesis, which gives neither its noise nor its sharpness",
    settings=Toy,
    run=run,
    has_parts=False,
)
