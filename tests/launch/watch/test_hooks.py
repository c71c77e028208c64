"""What the hooks see of loops that scripts really have; each in a process of its own, since they stay in."""

from __future__ import annotations

import sys
from pathlib import Path
from statistics import median

import pytest
import torch

from fulltilt.launch.command import parse
from fulltilt.launch.job import Job
from fulltilt.launch.observe import observe
from fulltilt.launch.watch.watch import Watch
from fulltilt.measure.observation import Observation
from fulltilt.measure.timeline import PHASES

SCRIPTS = Path(__file__).parents[1] / "scripts"
PEERS = Path(sys.prefix) / "peers"
"""Where `make test` puts transformers, apart from the environment."""

HEAD = """
import time
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
torch.set_num_threads(1)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = TensorDataset(torch.randn(40, 4))
def compute(seconds):
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass
def train(batch):
    optimizer.zero_grad()
    loss = model(batch).square().mean()
    loss.backward()
    optimizer.step()
"""


def seen_of(code: str, tmp_path: Path, **options: object) -> Observation:
    script = tmp_path / "script.py"
    script.write_text(HEAD + code)
    seen = observe(parse([str(script)]), full=True, **options)
    assert seen.exit_status == 0, seen.notes
    return seen


def total(seen: Observation, phase: str) -> float:
    return sum(step.phases.get(phase, 0.0) for step in seen.steps)  # type: ignore[call-overload]


def test_workers_that_a_loop_lets_go_of_end_in_the_epochs_start(tmp_path: Path) -> None:
    """A loop that knows how many batches there are never asks for one more: its workers end when it drops them."""
    seen = seen_of(
        """
from multiprocessing.util import Finalize
def leaves_slowly(_):
    Finalize(None, time.sleep, args=(0.4,), exitpriority=1)
loader = DataLoader(data, batch_size=4, num_workers=1, worker_init_fn=leaves_slowly)
batches = None
for _ in range(4):
    batches = None
    batches = iter(loader)
    for _ in range(len(loader)):
        train(next(batches)[0])
""",
        tmp_path,
    )
    assert seen.outside["epoch start"] > 0.8  # the first of the three may lie before the steps that count
    assert total(seen, "other") + seen.outside.get("other", 0.0) < 0.4, "nothing else was waited for"


@pytest.fixture(scope="module")
def plain() -> Observation:
    seen = observe(parse([str(SCRIPTS / "plain.py"), "--seconds", "0.002", "--epochs", "4"]), full=True)
    assert seen.exit_status == 0, seen.notes
    return seen


def test_phases_add_up_to_each_steps_time(plain: Observation) -> None:
    assert plain.steps[-1].number == 31
    for step in plain.steps:
        assert sum(step.phases.values()) == pytest.approx(step.seconds)
        assert step.phases["data wait" if "data wait" in step.phases else "forward"] > 0
    assert plain.attributed is not None
    assert plain.attributed > 0.95


def test_a_slow_loader_is_waited_for(plain: Observation) -> None:
    assert total(plain, "data wait") > 0.8 * 0.016 * len(plain.steps) * 7 / 8  # one batch of eight starts an epoch


def test_evaluation_stands_outside_of_the_steps(plain: Observation) -> None:
    assert plain.outside["eval"] > 4 * 16 * 0.002  # after each epoch, the last one too
    assert all("eval" not in step.phases for step in plain.steps)
    assert {loader.role for loader in plain.loaders} == {"train", "eval"}
    assert all(step.samples == 8 for step in plain.steps)


def test_the_loaders_are_known_by_their_lines(plain: Observation) -> None:
    train = next(loader for loader in plain.loaders if loader.role == "train")
    assert train.place is not None
    assert train.place.text.startswith("loader = DataLoader(Slow(")
    assert (train.dataset, train.samples, train.batch_size, train.num_workers) == ("Slow", 64, 8, 0)
    assert train.batch_bytes == 8 * (16 * 4 + 8)


def test_compiled_code_neither_breaks_nor_is_compiled_again(capfd: pytest.CaptureFixture[str]) -> None:
    seen = observe(parse([str(SCRIPTS / "compiled.py")]), full=True, echo=True)
    assert capfd.readouterr().out == "wrapped 1\nin place 1\nfunction 1\n"
    assert len(seen.steps) + 5 >= 15
    assert seen.training is not None
    assert seen.training.compiled


def test_losses_of_an_accumulated_step_and_a_scaled_one(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    code = """
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
expected = []
for step in range(8):
    optimizer.zero_grad()
    losses = []
    for micro in range(2):
        loss = model(torch.randn(8, 4)).square().mean() / 2
        scaler.scale(loss).backward()
        losses.append(loss.item())
    scaler.step(optimizer)
    scaler.update()
    expected.append(sum(losses))
print("losses", *expected)
"""
    seen = seen_of(code, tmp_path, echo=True)
    expected = [float(word) for word in capfd.readouterr().out.split()[1:]]
    assert seen.training is not None
    assert seen.training.accumulation == 2
    assert list(seen.first_losses) == pytest.approx(expected)


def test_a_step_that_the_scaler_leaves_out_is_a_step(tmp_path: Path) -> None:
    code = """
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
for step in range(20):
    optimizer.zero_grad()
    loss = model(torch.randn(8, 4)).square().mean() * (float("inf") if step % 4 == 3 else 1.0)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
"""
    seen = seen_of(code, tmp_path)
    assert seen.steps[-1].number == 19


def test_of_several_optimizers_the_most_frequent_counts(tmp_path: Path) -> None:
    code = """
rare = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(40):
    if step % 5 == 0:
        model(torch.randn(8, 4)).mean().backward()
        rare.step()
    train(torch.randn(8, 4))
"""
    assert 37 <= seen_of(code, tmp_path).steps[-1].number + 1 <= 41


def test_a_second_training_with_another_optimizer_goes_on_counting(tmp_path: Path) -> None:
    code = """
for fold in range(3):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(10):
        train(torch.randn(8, 4))
"""
    assert 28 <= seen_of(code, tmp_path).steps[-1].number + 1 <= 30


def test_a_teacher_is_no_evaluation_and_a_loop_without_gradients_is(tmp_path: Path) -> None:
    code = """
teacher = nn.Linear(4, 1)
for epoch in range(4):
    for (batch,) in DataLoader(data, batch_size=8):
        with torch.no_grad():
            teacher(batch)
            time.sleep(0.002)
        train(batch)
    with torch.no_grad():
        for (batch,) in DataLoader(data, batch_size=8):
            model(batch)
            time.sleep(0.004)
"""
    seen = seen_of(code, tmp_path)
    assert 4 * 5 * 0.004 < seen.outside["eval"] < 3 * 4 * 5 * 0.004
    assert total(seen, "other") > 0.002 * len(seen.steps)
    assert all(loader.in_memory for loader in seen.loaders)


def test_checkpoints_and_clipping_have_their_phases(tmp_path: Path) -> None:
    code = """
import io
def slowly():
    time.sleep(0.002)
    yield from model.parameters()
for step in range(12):
    optimizer.zero_grad()
    model(torch.randn(8, 4)).mean().backward()
    torch.nn.utils.clip_grad_norm_(slowly(), 1.0)
    time.sleep(0.01)  # between backward and step: the script's own
    optimizer.step()
    torch.save(model.state_dict(), io.BytesIO())
"""
    seen = seen_of(code, tmp_path)
    assert seen.outside["checkpoint"] > 0
    assert total(seen, "optimizer") > 0.002 * len(seen.steps)
    found = shares(seen)
    assert found["optimizer"] < 10 <= found["other"], "or its kernels would be blamed for it"


def test_other_threads_are_left_alone(tmp_path: Path) -> None:
    code = """
import threading
stop = threading.Event()
def busy():
    other = nn.Linear(4, 1)
    while not stop.is_set():
        other(torch.randn(2, 4)).mean().backward()
threading.Thread(target=busy).start()
for step in range(20):
    train(torch.randn(8, 4))
stop.set()
"""
    seen = seen_of(code, tmp_path)
    assert seen.training is not None
    assert seen.training.accumulation == 1
    assert all(sum(step.phases.values()) == pytest.approx(step.seconds) for step in seen.steps)


def test_prints_and_log_lines_are_logging(tmp_path: Path) -> None:
    code = """
import logging, sys
class Slow:
    def write(self, text):
        time.sleep(0.001)
    def flush(self):
        pass
logging.basicConfig(stream=Slow(), level=logging.INFO)
for step in range(12):
    train(torch.randn(8, 4))
    print(step, file=Slow())
    logging.info("step %d", step)
"""
    seen = seen_of(code, tmp_path)
    assert total(seen, "logging") > 0.002 * len(seen.steps)
    assert total(seen, "other") < total(seen, "logging")


def test_lightnings_closure_callbacks_and_logs_have_their_phases(tmp_path: Path) -> None:
    pytest.importorskip("lightning.pytorch")
    code = """
import lightning.pytorch as L
class Model(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = model
    def training_step(self, batch, index):
        loss = self.model(batch[0]).square().mean()
        time.sleep(0.01)  # the loss, in the closure of the optimizer's step
        self.log("loss", loss)
        return loss
    def configure_optimizers(self):
        return optimizer
class Slow(L.Callback):
    def on_train_batch_end(self, *_):
        time.sleep(0.02)
L.Trainer(
    max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
    enable_model_summary=False, callbacks=[Slow()],
).fit(Model(), DataLoader(data, batch_size=2))
"""
    seen = seen_of(code, tmp_path)
    count = len(seen.steps)
    assert count >= 10
    assert 0.01 * count < total(seen, "forward") < 0.02 * count
    assert 0.02 * count < total(seen, "logging") < 0.03 * count
    assert total(seen, "optimizer") < 0.01 * count
    assert seen.attributed is not None
    assert seen.attributed > 0.95


def test_what_hugging_faces_trainer_does_around_a_step_has_its_phases(tmp_path: Path) -> None:
    if not (PEERS / "transformers").is_dir():
        pytest.skip("transformers is not installed (make peers)")
    code = f"""
import sys
sys.path.append({str(PEERS)!r})
from transformers import Trainer, TrainerCallback, TrainingArguments
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = model
    def forward(self, inputs):
        return {{"loss": self.inner(inputs).square().mean()}}
class Slow(TrainerCallback):
    def on_step_end(self, *_, **__):
        time.sleep(0.02)
class Sleepy(Trainer):
    def compute_loss(self, *args, **kwargs):
        time.sleep(0.01)
        return super().compute_loss(*args, **kwargs)
samples = [{{"inputs": sample}} for (sample,) in data]
arguments = TrainingArguments(
    "out", max_steps=30, per_device_train_batch_size=2, use_cpu=True, report_to=[], save_strategy="no",
    disable_tqdm=True, remove_unused_columns=False,
)
Sleepy(Model(), arguments, train_dataset=samples, callbacks=[Slow()]).train()
"""
    seen = seen_of(code, tmp_path)
    count = len(seen.steps)
    assert count >= 10
    assert total(seen, "logging") > 0.02 * count
    assert total(seen, "forward") > 0.01 * count, "what a class of one's own does in its step"
    assert seen.attributed is not None
    assert seen.attributed > 0.95


def shares(seen: Observation) -> dict[str, float]:
    """Milliseconds of the usual step: on a busy machine some are late."""
    assert len(seen.steps) >= 8
    for step in seen.steps:
        assert sum(step.phases.values()) == pytest.approx(step.seconds)
    return {phase: median(step.phases.get(phase, 0.0) for step in seen.steps) * 1e3 for phase in PHASES}


def test_an_environment_between_forwards_is_the_scripts_own_code(tmp_path: Path) -> None:
    code = """
for episode in range(15):
    logs, state = [], torch.randn(1, 4)
    for move in range(4):
        logs.append(model(state))
        compute(0.003)
        state = torch.randn(1, 4)
    optimizer.zero_grad()
    torch.cat(logs).sum().backward()
    optimizer.step()
"""
    found = shares(seen_of(code, tmp_path))
    assert 9 <= found["other"] <= 14, "the last one lies before the backward, where a loss does, and computes"
    assert 3 <= found["forward"] <= 6


def test_a_batch_that_is_waited_for_between_forward_and_backward_is_no_loss(tmp_path: Path) -> None:
    code = """
batch = torch.randn(8, 4)
for step in range(15):
    optimizer.zero_grad()
    for micro in range(2):
        loss = model(batch).square().mean()
        time.sleep(0.01)
        batch = torch.randn(8, 4)
        loss.backward()
    optimizer.step()
"""
    found = shares(seen_of(code, tmp_path))
    assert 18 <= found["other"] <= 30
    assert found["forward"] <= 5


def test_what_follows_each_of_several_backwards_is_no_optimizers_work(tmp_path: Path) -> None:
    code = """
for step in range(15):
    optimizer.zero_grad()
    for micro in range(3):
        loss = model(torch.randn(8, 4)).square().mean()
        compute(0.002)
        loss.backward()
        if micro < 2:
            compute(0.01)
    compute(0.005)  # figures of gradients are drawn
    optimizer.step()
"""
    found = shares(seen_of(code, tmp_path))
    assert 24 <= found["other"] <= 35
    assert found["optimizer"] <= 5
    assert 6 <= found["forward"] <= 12


def test_what_an_encoder_gives_is_worked_on_before_the_decoder_has_it(tmp_path: Path) -> None:
    code = """
encoder, decoder, criterion = nn.Linear(4, 8), nn.Linear(4, 4), nn.MSELoss()
optimizer = torch.optim.SGD([*encoder.parameters(), *decoder.parameters()], lr=0.01)
for step in range(15):
    optimizer.zero_grad()
    batch = torch.randn(8, 4)
    mean, spread = encoder(batch).chunk(2, dim=1)
    drawn = mean + spread * torch.randn(8, 4)
    compute(0.005)
    found = {"found": decoder(drawn)}
    compute(0.005)
    criterion(found["found"], batch).backward()
    optimizer.step()
"""
    found = shares(seen_of(code, tmp_path))
    assert 10 <= found["forward"] <= 16
    assert found["other"] <= 4


def test_the_second_of_two_twins_has_an_input_of_its_own(tmp_path: Path) -> None:
    code = """
for step in range(15):
    optimizer.zero_grad()
    one = model(torch.randn(8, 4))
    compute(0.005)  # the other picture is read
    two = model(torch.randn(8, 4))
    compute(0.005)  # they are compared
    (one - two).square().mean().backward()
    optimizer.step()
"""
    found = shares(seen_of(code, tmp_path))
    assert 5 <= found["other"] <= 9
    assert 5 <= found["forward"] <= 9


def test_an_adversarial_pair_is_made_of_forwards_backwards_and_two_optimizers(tmp_path: Path) -> None:
    code = """
judge, maker, criterion = nn.Linear(4, 1), nn.Linear(4, 4), nn.BCEWithLogitsLoss()
judges = torch.optim.SGD(judge.parameters(), lr=0.01)
makers = torch.optim.SGD(maker.parameters(), lr=0.01)
real, fake = torch.ones(8, 1), torch.zeros(8, 1)
for (batch,) in DataLoader(TensorDataset(torch.randn(160, 4)), batch_size=8):
    judge.zero_grad()
    criterion(judge(batch), real).backward()
    made = maker(torch.randn(8, 4))
    compute(0.005)  # what is made is worked on
    criterion(judge(made.detach()), fake).backward()
    judges.step()
    compute(0.005)  # between the two
    maker.zero_grad()
    loss = criterion(judge(made), real)
    compute(0.005)  # more of the loss
    loss.backward()
    makers.step()
"""
    found = shares(seen_of(code, tmp_path))
    assert found["optimizer"] <= 3
    assert 4 <= found["forward"] <= 10
    assert 9 <= found["other"] <= 15, "nothing tells what was done with a picture that is given on detached"


def test_evaluation_without_gradients_and_in_a_models_own_mode_is_told_as_ever(tmp_path: Path) -> None:
    code = """
held = DataLoader(data, batch_size=8)
for epoch in range(4):
    for (batch,) in DataLoader(data, batch_size=8):
        train(batch)
    model.eval()
    for (batch,) in held:
        model(batch).mean()
        compute(0.004)
    model.train()
    with torch.no_grad():
        for (batch,) in held:
            model(batch).mean()
            compute(0.004)
"""
    seen = seen_of(code, tmp_path)
    epochs = sum(step.number % 5 == 4 for step in seen.steps)  # behind each of these; the first may be warming up
    assert epochs >= 3
    assert seen.outside["eval"] > epochs * 10 * 0.004
    assert shares(seen)["other"] < 1
    assert {loader.role for loader in seen.loaders} == {"train", "eval"}


def test_without_a_loader_nobody_knows_what_a_sample_is(tmp_path: Path) -> None:
    code = """
for step in range(15):
    optimizer.zero_grad()
    for micro in range(4):
        model(torch.randn(12, 4)).mean().backward()
    optimizer.step()
"""
    seen = seen_of(code, tmp_path)
    assert all(step.samples is None for step in seen.steps)
    assert seen.samples_per_second is None
    assert seen.steps_per_second is not None


def test_of_batches_without_tensors_the_loader_says_how_many_samples_they_have(tmp_path: Path) -> None:
    code = """
words = ["a b c d"] * 40
for epoch in range(2):
    for texts in DataLoader(words, batch_size=5, collate_fn=list):
        train(torch.tensor([[float(ord(word)) for word in text.split()] for text in texts]))
"""
    seen = seen_of(code, tmp_path)
    assert {step.samples for step in seen.steps} == {5}


def test_a_closure_that_is_called_often_is_one_step(tmp_path: Path) -> None:
    code = """
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=5)
inputs = torch.randn(16, 4)
def closure():
    optimizer.zero_grad()
    loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
    loss.backward()
    return loss
for _ in range(6):
    optimizer.step(closure)
"""
    seen = seen_of(code, tmp_path)
    assert seen.steps[-1].number == 5


def test_a_loss_in_a_closure_is_forward(tmp_path: Path) -> None:
    code = """
def closure():
    optimizer.zero_grad()
    loss = model(torch.randn(8, 4)).square().mean()
    compute(0.01)
    loss.backward()
    return loss
for step in range(15):
    optimizer.step(closure)
"""
    seen = seen_of(code, tmp_path)
    assert total(seen, "forward") > 0.01 * len(seen.steps)
    assert total(seen, "optimizer") < 0.01 * len(seen.steps)


@pytest.mark.parametrize("change", ["strength.value = epoch", "pass"])
def test_a_data_set_that_is_changed_between_epochs_is_seen(tmp_path: Path, change: str) -> None:
    code = f"""
class Strength:
    value = 0
    def __call__(self, samples):
        return torch.stack([sample for (sample,) in samples]) * self.value
strength = Strength()
loader = DataLoader(data, batch_size=8, num_workers=1, collate_fn=strength)
for epoch in range(3):
    {change}
    for batch in loader:
        train(batch)
"""
    (loader,) = seen_of(code, tmp_path).loaders
    assert loader.starts == 3
    assert loader.changes is (change != "pass")


def test_a_dataset_that_fails_when_it_is_looked_at_does_not_fail_the_script(tmp_path: Path) -> None:
    code = """
import sys
class Odd(torch.utils.data.Dataset):
    def __init__(self):
        self.kept = self
    def __getattr__(self, name):
        raise AttributeError(name) if name.startswith("__") else KeyError(name)
    def __len__(self):
        if "fulltilt" in sys._getframe(1).f_code.co_filename:
            raise OSError("the file is closed")
        return 40
    def __getitem__(self, index):
        return torch.randn(4)
odd = Odd()
for batch in DataLoader(odd, batch_size=4):
    train(batch)
"""
    seen = seen_of(code, tmp_path)
    assert seen.steps
    assert any("OSError: the file is closed" in note for note in seen.notes)


def test_a_loader_can_still_be_sent_to_another_process(tmp_path: Path) -> None:
    code = """
import os, pickle
loader = DataLoader(data, batch_size=8)
for (batch,) in loader:
    train(batch)
for function in (print, open, os.stat, torch.save, DataLoader.__init__, nn.Module.__call__):
    assert pickle.loads(pickle.dumps(function)) is function
for (batch,) in pickle.loads(pickle.dumps(loader)):
    train(batch)
"""
    assert len(seen_of(code, tmp_path).loaders) == 2


def test_steps_of_a_compiled_optimizer_are_told_by_the_gradients_that_are_cleared(tmp_path: Path) -> None:
    code = """
@torch.compile(backend="eager")
def step():
    optimizer.step()
for _ in range(12):
    optimizer.zero_grad()
    model(torch.randn(8, 4)).mean().backward()
    step()
"""
    assert seen_of(code, tmp_path).steps[-1].number == 10  # the last one's gradients are never cleared


def test_a_loader_that_is_asked_ahead_is_counted_once(tmp_path: Path) -> None:
    code = """
loader = DataLoader(data, batch_size=8)
for epoch in range(3):
    batches = iter(loader)
    ahead = next(batches)
    while ahead is not None:
        (batch,), ahead = ahead, next(batches, None)
        train(batch)
"""
    seen = seen_of(code, tmp_path)
    by_number = {step.number: step.samples for step in seen.steps}
    assert [by_number[number] for number in range(5, 15)] == 2 * [16, 8, 8, 8, 0]


def test_a_loader_that_accelerate_makes_anew_is_known_by_the_scripts_line(tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    code = """
from accelerate import Accelerator
loader = DataLoader(data, batch_size=8)
held = DataLoader(TensorDataset(torch.randn(16, 4)), batch_size=8)
model, optimizer, loader, held = Accelerator(cpu=True).prepare(model, optimizer, loader, held)
for epoch in range(3):
    for (batch,) in loader:
        train(batch)
    with torch.no_grad():
        for (batch,) in held:
            model(batch)
"""
    found = {loader.role: loader.place for loader in seen_of(code, tmp_path).loaders}
    assert found["train"] is not None
    assert found["train"].text == "loader = DataLoader(data, batch_size=8)"
    assert found["eval"] is not None
    assert found["eval"].text.startswith("held = DataLoader(")


@pytest.mark.parametrize(
    ("made", "line"),
    [
        ("loader = DataLoader(data, batch_size=8)", "loader = DataLoader("),
        ("loader = DataLoader(data, batch_size=8); data = Subset(data, range(32))", "loader = DataLoader("),
        ("loader = DataLoader(data, batch_size=8); data = TensorDataset(torch.ones(40, 4))", "loader = anew(loader, "),
        ("other = DataLoader(data); loader = DataLoader(data, num_workers=1)", "other = DataLoader("),
        ("other = DataLoader(data)\nloader = DataLoader(data)", "loader = anew("),
        ("loader = DataLoader(data, collate_fn=torch.stack)", "loader = anew("),
    ],
    ids=["the same", "the same, wrapped", "other data", "told apart", "no telling", "does something else"],
)
def test_a_loader_that_a_package_makes_is_the_scripts_where_it_is_the_same(
    made: str, line: str, tmp_path: Path
) -> None:
    packages = tmp_path / "site-packages"
    packages.mkdir()
    (packages / "rebuilding.py").write_text(
        "from torch.utils.data import DataLoader\n"
        "def anew(loader, data):\n"
        "    return DataLoader(data, batch_size=8, num_workers=loader.num_workers)\n"
    )
    code = f"""
import sys
sys.path.append({str(packages)!r})
from rebuilding import anew
from torch.utils.data import Subset
data = TensorDataset(torch.randn(40, 4))
{made}
loader = anew(loader, data)
for epoch in range(3):
    for (batch,) in loader:
        train(batch)
"""
    (loader,) = seen_of(code, tmp_path).loaders
    assert loader.place is not None
    assert loader.place.text.startswith(line)


MADE_ANEW = """
import gc, os, weakref, psutil
from torch.utils.data import Dataset
class Rows(Dataset):
    def __len__(self):
        return 64
    def __getitem__(self, index):
        return torch.full((4,), float(index))
alive = []
children = psutil.Process().children
for epoch in range(4):
    loader = DataLoader(Rows(), batch_size=4, num_workers=1)
    alive.append(weakref.ref(loader.dataset))
    for place, batch in enumerate(loader):
        train(batch)
        if place == 5:
            break
gc.collect()
del loader, batch
print("data sets", sum(one() is not None for one in alive), "workers", len(children()))
assert sum(one() is not None for one in alive) == 0, alive
assert not children(), children()
from multiprocessing.util import get_temp_dir
assert os.path.basename(os.path.dirname(os.path.dirname(get_temp_dir()))).startswith("fulltilt-"), get_temp_dir()
for batch in DataLoader(Rows(), batch_size=4):
    train(batch)
optimizer.zero_grad()
torch.autograd.backward(model(batch).mean() for _ in range(1))  # torch goes through it once
assert model[0].weight.grad is not None
"""


def test_a_loader_made_anew_each_epoch_is_one_and_is_let_go_of(tmp_path: Path) -> None:
    seen = seen_of(MADE_ANEW, tmp_path)
    anew, inline = seen.loaders
    assert (anew.made, anew.starts, anew.role, anew.num_workers) == (4, 4, "train", 1)
    assert (inline.made, inline.samples, inline.role) == (1, 64, "train")


def test_who_trains_in_a_thread_of_its_own_is_told(tmp_path: Path) -> None:
    code = """
import threading
thread = threading.Thread(target=lambda: train(torch.randn(8, 4)))
thread.start()
thread.join()
"""
    seen = seen_of(code, tmp_path)
    assert not seen.steps
    assert any("a thread of its own" in note for note in seen.notes)


@pytest.mark.parametrize("lets_go", [True, False])
def test_a_model_is_held_only_where_something_is_said_of_it(lets_go: bool, tmp_path: Path) -> None:
    watch = Watch(Job(out=str(tmp_path), lets_go=lets_go))
    assert watch.model is None
    watch.model = torch.nn.Linear(1, 1)
    assert (watch.model is None) == lets_go


AHEAD = """
import queue, threading
from fulltilt.feed import feed
def ahead(batches):
    given = queue.Queue(2)
    def ask():
        for batch in batches():
            time.sleep(0.01)
            given.put(batch)
        given.put(None)
    threading.Thread(target=ask, daemon=True).start()
    return iter(given.get, None)
loader = DataLoader(data, batch_size=4)
def begun(loader):
    iterator = iter(loader)
    return lambda: iterator
for epoch in range(2):
    for batch, in {batches}:
        train(batch)
"""


@pytest.mark.parametrize(
    ("batches", "loaders", "can_replay"),
    [
        ("ahead(lambda: loader)", [("unknown", True)], False),
        ("ahead(begun(loader))", [("unknown", True)], False),  # as a subclass does it, in its own `__iter__`
        ("(ahead(lambda: DataLoader(data, batch_size=8)), loader)[1]", [("train", False), ("unknown", True)], True),
        ('feed(loader, device="cpu")', [("train", False)], True),  # a thread of ours asks
    ],
    ids=["there", "begun here", "another", "feed"],
)
def test_a_loader_that_another_thread_asks_is_no_loader_that_nobody_waits_for(
    batches: str, loaders: list[tuple[str, bool]], can_replay: bool, tmp_path: Path
) -> None:
    """With a limit of the same rate there would be no headroom, while most of the time is waiting."""
    seen = seen_of(AHEAD.replace("{batches}", batches), tmp_path)
    assert len(seen.steps) > 5
    assert sorted((loader.role, loader.elsewhere) for loader in seen.loaders) == loaders
    assert seen.can_replay == can_replay
