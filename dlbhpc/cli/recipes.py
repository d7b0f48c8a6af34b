"""``dlbhpc recipes``: list the recipes, show one with all that stands beside it, or check all."""

from __future__ import annotations

import argparse
import json

from dlbhpc.recipe import Recipe, list_recipes, read_recipe
from dlbhpc.upstream.composed import upstream_surface

SCHEMA_VERSION = 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="one JSON object")
    actions = parser.add_subparsers(dest="action", metavar="ACTION")
    show = actions.add_parser("show", help="everything about one recipe")
    show.add_argument("recipe", help="its name")
    show.add_argument("--dataset", help="default: the recipe's first")
    check = actions.add_parser(
        "check",
        help="prove every rendered override against the upstreams' configurations",
        description="Prove every override of every route, and of its trial, against the recorded "
        "surfaces of the upstreams' configurations. Needs no checkout and no network. Exit status "
        "1 where one does not fit.",
    )
    check.add_argument(
        "--compose",
        action="store_true",
        help="also compose with the upstreams' own configurations, in checkouts under upstreams/ "
        "or where the environment variable DLBHPC_UPSTREAMS says",
    )
    for action in (show, check):
        # Not set when it is left out: the list's --json, given before the action, must survive.
        action.add_argument(
            "--json", action="store_true", default=argparse.SUPPRESS, help="one JSON object"
        )


def run(args: argparse.Namespace) -> int:
    if args.action == "show":
        recipe = read_recipe(args.recipe, args.dataset)
        print(json.dumps(recipe.to_json(), indent=1) if args.json else _shown(recipe))
        return 0
    if args.action == "check":
        from dlbhpc.cli.recipes_check import run as run_check

        return run_check(compose=args.compose, as_json=args.json)
    recipes = list_recipes()
    if args.json:
        listed = [_listed(recipe) for recipe in recipes]
        print(json.dumps({"schema_version": SCHEMA_VERSION, "recipes": listed}, indent=1))
    else:
        print(_table(recipes))
    return 0


def _listed(recipe: Recipe) -> dict[str, object]:
    return {
        "name": recipe.name,
        "summary": recipe.summary,
        "upstream": recipe.upstream.name,
        "datasets": list(recipe.datasets),
        "teacher": recipe.teacher.recipe if recipe.teacher else None,
    }


def _table(recipes: list[Recipe]) -> str:
    rows = [("recipe", "upstream", "datasets", "teacher", "")] + [
        (
            recipe.name,
            recipe.upstream.name,
            ", ".join(recipe.datasets),
            recipe.teacher.recipe if recipe.teacher else "-",
            recipe.summary,
        )
        for recipe in recipes
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    return "\n".join(
        "  ".join(
            [*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[4]]
        ).rstrip()
        for row in rows
    )


def _shown(recipe: Recipe) -> str:
    """A recipe for a reader: its numbers, where they come from, and what stands beside them."""
    upstream, teacher, init = recipe.upstream, recipe.teacher, recipe.student_init
    facts: list[tuple[str, object]] = [
        (
            "upstream",
            f"{upstream.repository} at {upstream.commit}" if upstream.commit else "bundled",
        ),
        ("evidence", recipe.evidence.source + _release(recipe)),
        ("steps", "one epoch" if recipe.steps is None else _steps(recipe)),
        ("global batch", recipe.global_batch),
        ("learning rate", recipe.learning_rate),
        ("warm-up steps", recipe.warmup_steps),
        ("optimizer", recipe.optimizer),
        ("precision", recipe.precision),
        ("sequence length", recipe.dataset.sequence_length),
        (
            "milestones",
            f"every {recipe.milestone_every:,} steps" if recipe.milestone_every else "each quarter",
        ),
        ("selected step", f"{recipe.selected_step:,}" if recipe.selected_step else "the last"),
        ("loss", recipe.loss or "the upstream's"),
        ("seed", recipe.seed),
        (
            "geometry",
            f"{recipe.nodes} x {recipe.gpus_per_node} GPUs x {recipe.per_device_batch} "
            "per device by default",
        ),
        (
            "teacher",
            f"{teacher.recipe} ({teacher.family}), adapter {teacher.adapter or 'none'}"
            if teacher
            else "none",
        ),
    ]
    if init:
        facts.append(("student init", f"{init.default} by default, of {', '.join(init.allowed)}"))
    facts += [
        (f"limit on {name}", f"{limit.most}: {limit.reason}")
        for name, limit in recipe.limits.items()
    ]
    if recipe.trial_defaults:
        sizes = ", ".join(f"{name} {size}" for name, size in recipe.trial_defaults.sizes.items())
        facts.append(("trial", sizes))
    facts += [("unverified", reason) for reason in _unverified(recipe)]
    facts += _resume(recipe)
    lines = [f"{recipe.name} on {recipe.dataset.name}: {recipe.summary}"]
    lines += [f"  {name:<26}{value}" for name, value in facts]
    lines.append("overrides (locked):")
    lines += [f"  {key} = {_shown_value(value)}" for key, value in recipe.overrides.items()]
    lines.append("departures (what the route needs beyond its locked table):")
    for departure in recipe.departures:
        lines.append(f"  {departure.key} = {_shown_value(departure.value)}")
        lines.append(f"      {departure.reason}")
    if recipe.disclosures:
        lines.append("differences from the upstream (disclosed, nothing is changed):")
        lines += [f"  {entry.subject}: {entry.difference}" for entry in recipe.disclosures]
    return "\n".join(lines)


def _unverified(recipe: Recipe) -> list[str]:
    reasons = [recipe.unverified.reason] if recipe.unverified else []
    surface = upstream_surface(recipe.upstream)
    if not surface.pinned:
        at = f"{surface.upstream} at {surface.commit}"
        reasons.append(f"only checked against {at}, a neighbour of its pin")
    return reasons


def _resume(recipe: Recipe) -> list[tuple[str, object]]:
    resume = recipe.resume
    return [
        ("resumed exactly", ", ".join(resume.exact)),
        ("begun anew", ", ".join(resume.anew) or "nothing"),
    ]


def _release(recipe: Recipe) -> str:
    evidence = recipe.evidence
    if evidence.release is None:
        return ""
    steps = f" runs {evidence.release_steps:,} steps" if evidence.release_steps else ""
    return f"; {evidence.release}{steps}, recorded, not used"


def _steps(recipe: Recipe) -> str:
    rounds = f" = {recipe.rounds} rounds x {recipe.steps_per_round:,}" if recipe.rounds else ""
    return f"{recipe.steps:,}{rounds}"


def _shown_value(value: object) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return str(value)
