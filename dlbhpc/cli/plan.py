"""``dlbhpc plan``: every exact geometry of a recipe, best first."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict

from dlbhpc.errors import DlbhpcError
from dlbhpc.geometry import MAX_GPUS_PER_NODE, Geometry, exact_geometries
from dlbhpc.recipe import Recipe, read_recipe

SCHEMA_VERSION = 1
MAX_NODES = 8
"""How many nodes are considered when the user names no number."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--recipe", required=True, help="its name: see `dlbhpc recipes`")
    parser.add_argument("--dataset", help="default: the recipe's first")
    parser.add_argument("--max-nodes", type=int, metavar="N", help=f"default: {MAX_NODES}")
    parser.add_argument(
        "--gpus-per-node",
        type=int,
        metavar="G",
        help=f"nodes with exactly this many (default: 1 to {MAX_GPUS_PER_NODE})",
    )
    parser.add_argument(
        "--max-per-device-batch",
        type=int,
        metavar="B",
        help="what fits into a GPU's memory (default: the recipe's)",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object")


def run(args: argparse.Namespace) -> int:
    recipe = read_recipe(args.recipe, args.dataset)
    max_nodes, max_per_device = _bounds(recipe, args.max_nodes, args.max_per_device_batch)
    found = exact_geometries(recipe.global_batch, max_nodes, args.gpus_per_node, max_per_device)
    if not found:
        raise DlbhpcError(
            f"no exact geometry reaches the global batch {recipe.global_batch} of {recipe.name} on "
            f"at most {max_nodes} nodes of {args.gpus_per_node} GPUs: leave --gpus-per-node out to "
            "see which numbers do"
        )
    if args.json:
        print(json.dumps(_as_json(recipe, max_per_device, found), indent=1))
    else:
        print(_as_text(recipe, max_per_device, found))
    return 0


def _bounds(recipe: Recipe, nodes: int | None, per_device: int | None) -> tuple[int, int]:
    """The largest number of nodes and per-device batch: the user's, within the recipe's limits."""
    nodes = MAX_NODES if nodes is None else nodes
    per_device = recipe.per_device_batch if per_device is None else per_device
    return (
        min(nodes, recipe.max_nodes or nodes),
        min(per_device, recipe.max_per_device_batch or per_device),
    )


def _as_json(recipe: Recipe, max_per_device: int, found: list[Geometry]) -> dict[str, object]:
    return {
        "schema_version": SCHEMA_VERSION,
        "recipe": recipe.name,
        "dataset": recipe.dataset.name,
        "global_batch": recipe.global_batch,
        "max_per_device_batch": max_per_device,
        "geometries": [{**asdict(geometry), "world": geometry.world} for geometry in found],
    }


def _as_text(recipe: Recipe, max_per_device: int, found: list[Geometry]) -> str:
    lines = [
        f"{recipe.name} on {recipe.dataset.name}: global batch {recipe.global_batch}, "
        f"at most {max_per_device} per device, best first",
        "  nodes  GPUs/node  per device  accumulation  GPUs",
    ]
    for geometry in found:
        is_default = (recipe.nodes, recipe.gpus_per_node, recipe.per_device_batch) == (
            geometry.nodes,
            geometry.gpus_per_node,
            geometry.per_device_batch,
        )
        lines.append(
            f"  {geometry.nodes:>5}  {geometry.gpus_per_node:>9}  {geometry.per_device_batch:>10}"
            f"  {geometry.accumulation:>12}  {geometry.world:>4}" + "  (default)" * is_default
        )
    lines += [
        f"  {name}: at most {limit.most}, since {limit.reason}"
        for name, limit in recipe.limits.items()
    ]
    return "\n".join(lines)
