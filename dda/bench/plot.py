"""`dda plot`: draws latency and bandwidth curves of results that `dda bench --json` wrote."""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

from dda.bench.options import size_text

# A curve's name, and its points: bytes, microseconds, GB/s.
Curves: TypeAlias = dict[str, list[tuple[int, float, float]]]


def curves_of(results: dict[str, Any]) -> Curves:
    """Returns one curve for each backend; for each dtype, reduction and root, where several are.

    Args:
        results: what `dda bench --json` wrote.
    """
    lines = results["results"]
    varying = [key for key in ("type", "redop", "root") if len({line[key] for line in lines}) > 1]
    curves: Curves = defaultdict(list)
    for line in lines:
        form = line["compared_form"]
        records = {line["backend"]: line[form]}
        records.update({name: forms[form] for name, forms in line["peers"].items()})
        for name, record in records.items():
            if record is not None and line["size"] > 0:
                label = " ".join([name, *(f"{key} {line[key].strip()}" for key in varying)])
                curves[label].append((line["size"], record["time"], record["bus_bw"]))
    return dict(curves)


def draw(results: dict[str, Any], path: str) -> None:
    """Draws the curves into an image file, whose ending says which kind.

    Raises:
        ValueError: there is nothing to draw.
    """
    from matplotlib.figure import Figure

    curves = curves_of(results)
    if not curves:
        raise ValueError("the file has no results with a size")
    first = results["results"][0]
    figure = Figure(figsize=(11, 4.5), layout="constrained")
    latency, bandwidth = figure.subplots(1, 2)
    for name, points in curves.items():
        sizes, times, rates = zip(*sorted(points), strict=True)
        latency.plot(sizes, times, marker="o", markersize=3, label=name)
        bandwidth.plot(sizes, rates, marker="o", markersize=3, label=name)
    for axes, label in ((latency, "time of a call (µs)"), (bandwidth, "bus bandwidth (GB/s)")):
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter(lambda size, _: size_text(size))
        axes.set_yscale("log")
        axes.set_xlabel("size (bytes)")
        axes.set_ylabel(label)
        axes.grid(visible=True, which="major", alpha=0.3)
    latency.legend()
    form = first["compared_form"].replace("_", " ")
    figure.suptitle(
        f"{first['experiment_name']}, {form}, {results['config']['ngpus']} ranks, "
        f"{results['machine']['cpu']}, {results['start_time'][:10]}"
    )
    figure.savefig(path, dpi=150)


def main(arguments: Sequence[str]) -> int:
    """Runs `dda plot` with its arguments; returns the exit status."""
    parser = argparse.ArgumentParser(prog="dda plot", description=__doc__)
    parser.add_argument("results", help="a file that dda bench --json wrote")
    parser.add_argument("-o", "--output", help="the image; default: beside the results, as PNG")
    given = parser.parse_args(arguments)
    output = given.output or str(Path(given.results).with_suffix(".png"))
    try:
        draw(json.loads(Path(given.results).read_text()), output)
    except ImportError as error:
        print(f"dda plot: {error}. It comes with: pip install matplotlib", file=sys.stderr)
        return 1
    except (OSError, ValueError, KeyError) as error:
        print(f"dda plot: cannot draw {given.results}: {error!r}", file=sys.stderr)
        return 1
    print(output)
    return 0
