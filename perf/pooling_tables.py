"""What the benchmark of poolings prints and draws."""

from pathlib import Path
from typing import Any

from every_pooling import UNIT, BagSize
from gsp_ways import AUTOGRAD, CLOSED_FORM, THIS, Size


def print_comparison(entry: dict[str, Any]) -> None:
    print(f"\n{Size(**entry['size'])}   (largest difference to the paper's vector: {entry['disagreement']:.0e})")
    print(f"  {'':32}{'ms':>9}  {'quartiles':>17}  {'x this':>7}  {'memory MB':>10}  {'multiple':>8}")
    this = entry["milliseconds"][THIS]
    for name, milliseconds in entry["milliseconds"].items():
        print(_row(entry, name, milliseconds / this))
    for name, row in entry["ratios"].items():
        verdict = "met" if row["met"] else "NOT MET"
        print(f"  {name:32}{row['measured']:9.3f}  aim {row['aim']:8}{verdict}")


def print_poolings(entry: dict[str, Any]) -> None:
    """The second table: in the order of their time."""
    print(f"\nEvery pooling, {BagSize(**entry['size'])}   (memory as a multiple of the features)")
    head = f"{'ms':>9}  {'quartiles':>17}  {'x avg':>7}  {'memory MB':>10}  {'multiple':>8}  {'parameters':>10}"
    print(f"  {'':32}{head}")
    ratios = entry["time_ratio"]
    for name in sorted(ratios, key=lambda name: (name != UNIT, ratios[name])):
        print(f"{_row(entry, name, ratios[name])}  {entry['parameters'][name]:10,}")


def _row(entry: dict[str, Any], name: str, ratio: float) -> str:
    low, high = entry["quartiles"][name]
    milliseconds, megabytes = entry["milliseconds"][name], entry["memory_bytes"][name] / 1e6
    spread, multiple = f"{low:.2f} - {high:.2f}", entry["memory_multiple"][name]
    return f"  {name:32}{milliseconds:9.2f}  {spread:>17}  {ratio:7.2f}  {megabytes:10.2f}  {multiple:8.2f}"


def print_rounds(sweep: dict[str, Any]) -> None:
    print(f"\nAgainst the number of rounds k, {Size(**sweep['size'])}: ms / MB")
    print(f"  {THIS:32}{sweep['milliseconds'][THIS]:8.2f} / {sweep['megabytes'][THIS]:.2f}, without rounds")
    for i, k in enumerate(sweep["rounds"]):
        cells = [
            f"{name} {sweep['milliseconds'][name][i]:8.2f} / {sweep['megabytes'][name][i]:6.2f}"
            for name in (CLOSED_FORM, AUTOGRAD)
        ]
        print(f"  k = {k:<4} " + "    ".join(cells))


def draw_rounds(sweep: dict[str, Any], machine: dict[str, Any], path: Path) -> None:
    """Two panels against k, told apart by line and marker, so that grey print is enough."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.ticker import LogLocator

    looks = {THIS: ("-", ""), CLOSED_FORM: ("--", "o"), AUTOGRAD: (":", "s")}
    figure, axes = pyplot.subplots(1, 2, figsize=(9, 4), layout="constrained")
    quantities = [("milliseconds", "forward + backward [ms]"), ("megabytes", "memory beyond inputs and results [MB]")]
    for axis, (key, label) in zip(axes, quantities, strict=True):
        for name, (line, marker) in looks.items():
            values = sweep[key][name]
            values = values if isinstance(values, list) else [values] * len(sweep["rounds"])
            axis.plot(sweep["rounds"], values, linestyle=line, marker=marker, label=name)
        axis.set(xscale="log", yscale="log", xlabel="rounds of the iteration, k", ylabel=label)
        axis.set_xticks(sweep["rounds"], labels=map(str, sweep["rounds"]))
        axis.minorticks_off()
        low, high = axis.get_ylim()
        axis.set_ylim(low / 1.5, high * 1.5)
        axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.yaxis.set_major_formatter("{x:g}")
        axis.grid(alpha=0.3)
    axes[0].legend()
    where = (
        f"{machine['processor']}, {machine['threads']} threads" if machine["device"] == "cpu" else machine["processor"]
    )
    figure.suptitle(
        f"Generalized sum pooling, {Size(**sweep['size'])}, fp32\n{where}, torch {machine['torch']}", fontsize=11
    )
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
