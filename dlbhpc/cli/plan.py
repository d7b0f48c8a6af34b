"""``dlbhpc plan``: every exact geometry of a recipe, best first."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path

from dlbhpc.cli.profile_flags import add_profile_arguments, chosen_profile
from dlbhpc.cli.when import MAX_NODES, as_json, expectations, line_of
from dlbhpc.errors import DlbhpcError
from dlbhpc.geometry import MAX_GPUS_PER_NODE, Geometry, exact_geometries
from dlbhpc.recipe import Recipe, read_recipe

SCHEMA_VERSION = 1


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
    parser.add_argument(
        "--when",
        action="store_true",
        help="ask the cluster when it would start each, and finish it where the pace is known",
    )
    parser.add_argument("--root", type=Path, metavar="DIR", help="project root (the checkout)")
    add_profile_arguments(parser)


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
    if args.when:
        return _when(args, found)
    if args.json:
        print(json.dumps(_as_json(recipe, max_per_device, found), indent=1))
    else:
        print(_as_text(recipe, max_per_device, found))
    return 0


def _when(args: argparse.Namespace, found: list[Geometry]) -> int:
    from dlbhpc.command import Request, plan_launch

    profile = chosen_profile(args)
    best = found[0]
    request = Request(
        recipe=args.recipe,
        dataset=args.dataset,
        nodes=best.nodes,
        gpus_per_node=best.gpus_per_node,
        per_device_batch=best.per_device_batch,
        root=args.root,
        num_workers=profile.num_workers,
        accelerator=profile.accelerator,
    )
    expected = expectations(plan_launch(request), profile, found)
    if args.json:
        shown = {
            "schema_version": SCHEMA_VERSION,
            "recipe": args.recipe,
            "cluster": profile.name,
            "expected": [as_json(item) for item in expected],
        }
        print(json.dumps(shown, indent=1))
    else:
        print(f"{args.recipe} on the profile {profile.name}, the best of each shape:")
        print("\n".join(f"  {line_of(item)}" for item in expected))
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
