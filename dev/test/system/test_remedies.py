#!/usr/bin/env python3
"""
test_remedies.py: can the advice of a refusal be followed? Random command lines are planned (--dry-run imagines any
mesh). Where one is refused and the line says what to give, use, add or drop, that is done, again and again, up to a
run: no refusal may come twice.
"""
import random, re

from checks import TRAIN, check, finish, launch

TRIALS = 250
ADVICE = (  # pattern, and whether its option is to be dropped
    (r"drop (--[a-z0-9-]+)", True),
    (r"^(--[a-z0-9-]+) (?:\S+ )?has no (?:effect|meaning)", True),
    (r"needs (--allreduce) NAME", False),
    (r"needs (--out|--export) ", True),  # which a plan does not take: what needs it goes
    (r"(--[a-z0-9-]+) can be at most (\S+)", False),
    (r"needs? (?:a pipeline, )?(--[a-z0-9-]+) (\d+) or more", False),
    (r"(?:give|use|add|that is|are) (--[a-z0-9-]+)(?: (\w[\w.-]*))?", False))


def choose(draw):
    """A command line: as people mistype them, most of it small numbers that need not fit each other."""
    few = {"--layers": (1, 2, 3, 4, 8), "--pp": (1, 2, 3, 4, 8), "--tp": (1, 2, 3, 4), "--dp": (1, 2, 3, 4),
           "--schedule": ("gpipe", "1f1b", "interleaved", "zb-h1", "zb-v"), "--vpp": (1, 2, 3, 4), "--zero": (0, 1, 2),
           "--micro-batch": (1, 2, 3, 4), "--global-batch": (1, 4, 6, 8, 12, 16), "--heads": (2, 3, 4, 6),
           "--hidden": (24, 48), "--recompute": ("none", "selective", "full"), "--seq": (16, 31, 32),
           "--sites": (1, 2, 3), "--allreduce": ("ring", "multitree", "native"), "--topology": ("torus:2x2", "ring:4"),
           "--sequence-parallel": ("",), "--tp-comm-overlap": ("",), "--dp-mode": ("sync", "dc-s3gd", "diloco"),
           "--dc-lambda": (0.2,), "--local-steps": (4,), "--caat-fraction": (0.5,), "--caat-ranks": (2, 4),
           "--optimizer": ("sgd",), "--beta2": (0.9,), "--temperature": (0,), "--top-k": (5,), "--keep-last": (2,)}
    names = draw.sample(sorted(few), draw.randint(1, 5))
    return {name: str(draw.choice(few[name])) for name in names}


def plan(options):
    """-> exit status, the refusal"""
    line = [f"{name}={value}" if value else name for name, value in options.items()]
    made = launch(TRAIN, *line, "--dry-run", "--data", __file__)
    return made.returncode, made.stderr.replace("train_gpt: ", "").strip()


def follow(options, refusal):
    """The command line after the advice; None: there is none that a program can follow."""
    for pattern, drops in ADVICE:
        found = re.search(pattern, refusal)
        if not found:
            continue
        name, value = (found.groups() + ("",))[:2]
        if drops:
            name = name if name in options else refusal.split()[0]
            return {k: v for k, v in options.items() if k != name} if name in options else None
        value = value or ("ring" if name == "--allreduce" else "")
        return {**options, name: value} if value or name in ("--sequence-parallel", "--tp-comm-overlap") else None
    return None


def main():
    draw, wrong, refused, followed = random.Random(1), [], 0, 0
    for _ in range(TRIALS):
        options = first = choose(draw)
        seen, (status, refusal) = set(), plan(options)
        refused += status == 2
        while status == 2 and options is not None:
            kind = re.sub(r"[\d.]+", "N", refusal)
            if kind in seen or not kind:
                wrong.append(f"{first}, then {options}: {refusal}, again")
                break
            seen.add(kind)
            options = follow(options, refusal)
            if options is not None:
                followed += 1
                status, refusal = plan(options)
        if status not in (0, 2):
            wrong.append(f"{first}: status {status}: {refusal}")
    check(not wrong and min(refused, followed) > TRIALS / 4,
          f"{TRIALS} command lines, {refused} refused, advice followed {followed} times; wrong: {wrong[:20]}")
    finish()


main()
