"""Training and evaluation that take no time, for the launcher's tests: what a run does is told by its config's name.

Every call is noted in DIR/calls, so that tests can count them.
"""

import errno
import json
import os
import signal
import time
from pathlib import Path

from configs import fields
from training.run_directory.files import write_json


def note(workdir, what):
    sweep = Path(workdir).parents[2]
    with (sweep / "calls").open("a") as file:
        file.write(f"{what} {Path(workdir).relative_to(sweep / 'runs')} {os.getpid()}\n")


def run_json(config, **values):
    return {
        "schema": 1,
        "name": config.name,
        "status": "running",
        "error": None,
        "updated": "2100-01-01T00:00:00+00:00",
        "host": os.uname().nodename,
        "pid": os.getpid(),
        "budget": config.budget.to_dict(),
        "seed": config.seed,
        "step": 0,
        "wall_time": {"compile": 0.0, "train": 0.0, "eval": 0.0, "total": 0.1},
        **values,
    }


def together(configs, workdirs):
    """Trains a pack: notes it, and does for each run what `train` does; a run named `apart` has it fail as a whole."""
    note(workdirs[0], f"together-{len(configs)}")
    if any(config.name == "apart" for config in configs):
        raise RuntimeError("no room for all")
    for config, workdir in zip(configs, workdirs, strict=True):
        train(config, workdir)
    return [json.loads((Path(workdir) / "run.json").read_text()) for workdir in workdirs]


def together_disturbed(configs, workdirs):
    """Trains a pack for real; at its step 5 run `full` finds the disk full, the directory of `moved` is moved away."""
    from training.loop import after_step, packed

    original = after_step.spend

    def spend(run, tokens, seconds):
        original(run, tokens, seconds)
        name, workdir = run.plan.config.name, run.plan.workdir
        if run.state.spent.steps == 5 and name == "full":
            raise OSError(errno.ENOSPC, "No space left on device")
        if run.state.spent.steps == 5 and name == "moved" and not (away := sweep_away(workdir)).exists():
            while not (workdir / "checkpoints/4").exists():  # it is written beside the steps
                time.sleep(0.01)
            workdir.rename(away)

    after_step.spend = spend
    try:
        return counted(packed.train)(configs, workdirs)
    finally:
        after_step.spend = original


def sweep_away(workdir):
    """Where `together_disturbed` moves a run's directory."""
    return Path(workdir).parents[2] / "away"


def train_counted(config, workdir):
    """Trains a run for real; notes each step that it takes."""
    from training.loop import trainer

    return counted(trainer.train)(config, workdir)


def counted(train):
    """Returns a training function that notes every step of every run, as `step-N`."""
    from training.loop import after_step

    def noting(configs, workdirs):
        original = after_step.count

        def count(run, *given):
            if run.plan.workdir.exists():
                note(run.plan.workdir, f"step-{run.state.spent.steps + 1}")
            original(run, *given)

        after_step.count = count
        try:
            return train(configs, workdirs)
        finally:
            after_step.count = original

    return noting


def train(config, workdir):
    """Does what the arm's name says: raise, exit, zero, kill, diverge, slow, brief, device, or once (dies at first)."""
    note(workdir, "train")
    workdir = Path(workdir)
    write_json(workdir / "config.json", fields.to_dict(config))
    write_json(workdir / "run.json", run_json(config))
    print(f"training {config.name}")
    ends = run_json(config, status="done", step=round(config.budget.amount), train_loss=1.0, val_loss=1.5)
    name = config.name
    if name == "raise":
        raise RuntimeError("no such luck\nsecond line")
    if name == "gone" and not sweep_away(workdir).exists() and not (workdir / "back").exists():
        (workdir / "checkpoints/1").mkdir(parents=True)
        workdir.rename(sweep_away(workdir))
        raise RuntimeError("vanished")
    if name == "exit":
        os._exit(3)
    if name == "zero":
        os._exit(0)
    if name == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if name == "diverge":
        ends |= {"status": "diverged", "error": "the loss is nan"}
    if name == "once" and not (workdir / "tried").exists():
        (workdir / "tried").write_text("")
        os._exit(1)
    if name.startswith(("slow", "brief")):
        slow(config, workdir, ends, 600 if name.startswith("slow") else 25)
        return
    if name.startswith("device"):
        time.sleep(0.5)
        (workdir / "device").write_text(f"{os.getpid()} {os.environ.get('CUDA_VISIBLE_DEVICES')}")
    write_json(workdir / "run.json", ends)


def slow(config, workdir, ends, steps):
    """A tenth of a second a step; saves itself when told to stop, as the trainer does; continues where it was."""
    caught = []
    before = [signal.signal(number, lambda n, _: caught.append(n)) for number in (signal.SIGTERM, signal.SIGINT)]
    step = int((workdir / "saved").read_text()) if (workdir / "saved").exists() else 0
    while step < steps and not caught:
        step += 1
        with (workdir / "metrics.jsonl").open("a") as file:
            file.write(json.dumps({"step": step, "tokens": step, "train_loss": 1.0, "tokens_per_second": 10.0}) + "\n")
        time.sleep(0.1)
    for number, handler in zip((signal.SIGTERM, signal.SIGINT), before, strict=True):
        signal.signal(number, handler)
    with (workdir / "steps").open("a") as file:  # how far each call came
        file.write(f"{step} ")
    (workdir / "saved").write_text(str(step))
    write_json(workdir / "run.json", ends | {"status": "preempted" if caught else "done", "step": step})


def quick(config, workdir):
    """Finishes what `slow` began."""
    note(workdir, "train")
    write_json(Path(workdir) / "config.json", fields.to_dict(config))
    write_json(Path(workdir) / "run.json", run_json(config, status="done", step=600))


def evaluate(workdir, evals):
    (name,) = evals
    note(workdir, name)
    workdir = Path(workdir)
    arm = workdir.parent.name
    if arm == "evalfail" and name == "loss":
        raise ValueError("cannot be measured")
    if arm == "evalkill" and name == "loss":
        os.kill(os.getpid(), signal.SIGKILL)
    (workdir / "eval").mkdir(exist_ok=True)
    began = time.time()
    if name == "throughput":
        time.sleep(0.3)
    write_json(workdir / "eval" / f"{name}.json", {"eval": name, "began": began, "ended": time.time()})


def evaluate_nothing(workdir, evals):
    """An evaluation that ends well and leaves no result."""
    note(workdir, evals[0])


def evaluate_long(workdir, evals):
    """An evaluation that is at work until it is interrupted."""
    note(workdir, evals[0])
    time.sleep(100)


def evaluate_well(workdir, evals):
    """An evaluation that no longer fails."""
    note(workdir, evals[0])
    write_json(Path(workdir) / "eval" / f"{evals[0]}.json", {"eval": evals[0]})


def calls(directory):
    """Returns the noted calls as (what, run)."""
    path = Path(directory) / "calls"
    lines = path.read_text().splitlines() if path.exists() else []
    return [tuple(line.split()[:2]) for line in lines]


def pids(directory):
    return {line.split()[2] for line in (Path(directory) / "calls").read_text().splitlines()}


def main():
    """Launches a sweep file with the fakes: `FILE DIR [LAUNCHER [RETRIES [SBATCH...]]]`."""
    import sys

    from sweeps import launch
    from sweeps.execution.driver import Functions
    from sweeps.execution.policy import Policy
    from sweeps.launchers.engines import Where
    from sweeps.spec import expand

    # Tests send it SIGINT; where they run in the background of a shell, that is ignored from the start.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    file, directory, *more = sys.argv[1:]
    launcher = more[0] if more else "local"
    retries = int(more[1]) if len(more) > 1 else 0
    workers = 2 if launcher == "local" else None
    functions = Functions("tests.sweeps.fakes:train", "tests.sweeps.fakes:evaluate")
    where = Where(launcher, {"sbatch": more[2:]} if more[2:] else {})
    sweep, policy = expand.load(file), Policy(retries=retries)
    done = launch.launch(sweep, Path(directory), workers=workers, functions=functions, where=where, policy=policy)
    sys.exit(done.code)


if __name__ == "__main__":
    main()
