"""``lookalike improve IDX``: train the model of an index further on marks and labels."""

import json
from dataclasses import dataclass
from pathlib import Path

from lookalike._util.settings import setting
from lookalike._util.signals import StopRequest
from lookalike.cli.arguments import JSON, REQUIRED, UsageError, parse
from lookalike.cli.interrupt import exit_on_interrupt
from lookalike.cli.loading import NO_CACHE
from lookalike.cli.output import print_result
from lookalike.inference.engine_name import ENGINE_HELP, EngineName

DESCRIPTION = """Train the model of an index further on its labels and on what people marked on the page of lookalike
serve as right or wrong. A quarter of the marks and of the classes is held out. The new model replaces the old one only
if it is not worse on either; a running server takes it over. Pictures are not read again if their features are cached.
--rollback returns to the model before. The exit code is 1 if the model was kept because the new one was worse."""
EXAMPLE = "lookalike improve mine.idx"


@dataclass
class ImproveSettings:
    """Options of ``lookalike improve``."""

    index: Path = setting(REQUIRED, "folder of an index")
    rollback: bool = setting(False, "return to the model before the last improvement")
    steps: int = setting(100, "number of training steps", least=1)
    seed: int = setting(0, "seed of the batches and of what is held out", least=0, below=2**63)
    cache: Path | None = setting(None, "folder of cached features; null: ~/.cache/lookalike, or LOOKALIKE_CACHE")
    device: str | None = setting(None, "cpu, cuda, ...; null: a GPU if there is one")
    engine: EngineName = setting("auto", ENGINE_HELP)
    store: str | None = setting(
        None, "address of the Milvus server that may receive LOOKALIKE_MILVUS_TOKEN; null: LOOKALIKE_MILVUS_URI"
    )


def run(argv: list[str]) -> int:
    """Run ``lookalike improve`` with the words after its name, and return the exit code."""
    settings, flags = parse(ImproveSettings, argv, "improve", DESCRIPTION, EXAMPLE, positional=["index"], flags=JSON)
    if settings.cache is not None and str(settings.cache) == NO_CACHE:
        raise UsageError("improve trains from cached features: --cache must be a folder")
    with exit_on_interrupt():
        from lookalike.improve import improve, roll_back

    with StopRequest().listening() as stop:
        if settings.rollback:
            about = roll_back(
                settings.index, device=settings.device, engine=settings.engine, store=settings.store, stop=stop
            )
            answer = {"index": str(settings.index), "version": about.home, "fingerprint": about.fingerprint}
            if flags:
                print(json.dumps(answer))
            else:
                print_result(f"{settings.index} has its earlier model again; --rollback once more undoes this")
            return 0
        report = improve(
            settings.index,
            steps=settings.steps,
            seed=settings.seed,
            cache=settings.cache,
            device=settings.device,
            engine=settings.engine,
            store=settings.store,
            stop=stop,
        )
    if flags:
        print(json.dumps({"index": str(settings.index), **report.to_dict()}))
    else:
        print_result("\n".join(report.lines()))
    return 0 if report.installed else 1
