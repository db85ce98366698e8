"""`blocknb bench torch_llama`: a training step, forward and backward, of a Hugging Face Llama of 1 B parameters with random weights.

The contestants share the parameters and the tokens: torch.compile alone, eager, and the model after `blocknb.torch.replace`, compiled with
`backend="blocknb"`. Two more also use the options of `replace`: `attention="causal"`, and `fused_loss="keep_logits"`, or `fused_loss=True`,
which takes less memory and more time. They make no mask, so their peer is torch.compile with torch's attention and no mask. The loss and
gradients of each are compared with those of an eager step in fp32; they may be at most twice as far from it as those of the eager step in
bf16. Steps are timed in turns. The peak memory is that of torch's allocator during one step, and includes the parameters and their
gradients.
"""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from blocknb.bench.rows import Row, show
from blocknb.bench.suite.measure import one_line
from blocknb.bench.suite.runner import BenchOptions
from blocknb.bench.suite.table import ratio_text
from blocknb.bench.torch_layers import session
from blocknb.bench.torch_layers.session import StepClock
from blocknb.profile.timing import Timing

OURS, ALL, COMPILED, EAGER = "replace + blocknb", "all options + blocknb", "torch.compile", "eager"
LEAN = "all options, no logits + blocknb"
UNMASKED = "torch.compile, no mask"
PEERS = {OURS: COMPILED, ALL: UNMASKED, LEAN: UNMASKED}  # by our contestant: the one with the same masks
UNMASKED_ATTENTION = "sdpa_causal"  # in the registries of transformers
FLOOR, GOAL = 1.0, 1.1  # of the peer's time over ours
MEMORY_GOAL = 0.7  # of the peer's peak
ROUNDS, SECONDS = 12, 20.0
SLACK = 2.0  # how much farther from fp32 than eager bf16 a contestant may be


@dataclass(frozen=True)
class LlamaSize:
    """The sizes of the model and of a step. The defaults are those of Llama 3.2 1B, with 4 sequences of 2048 tokens."""

    hidden: int = 2048
    layers: int = 16
    intermediate: int = 8192
    heads: int = 32
    kv_heads: int = 8
    vocabulary: int = 128256
    batch: int = 4
    tokens: int = 2048


def model_of(size: LlamaSize, device: str, seed: int) -> Any:
    """The model in bf16, in training mode, with random weights from a seed."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    config = LlamaConfig(
        hidden_size=size.hidden, num_hidden_layers=size.layers, intermediate_size=size.intermediate,
        num_attention_heads=size.heads, num_key_value_heads=size.kv_heads, vocab_size=size.vocabulary,
        max_position_embeddings=size.tokens, tie_word_embeddings=True,
    )  # fmt: skip
    with torch.device(device):
        return LlamaForCausalLM(config).to(torch.bfloat16).train()


def sharing(model: Any) -> Any:
    """A copy of a model that shares its parameters and buffers."""
    memo: dict[int, Any] = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    return copy.deepcopy(model, memo)


class LlamaStep:
    """Forward and backward; `model` may be compiled, and `parameters` are those of the shared weights, by name."""

    def __init__(self, model: Any, parameters: dict[str, Any], tokens: Any) -> None:
        self.model, self.parameters, self.tokens = model, parameters, tokens
        self.loss: Any = None

    def clear(self) -> None:
        """Frees the gradients and the loss."""
        self.loss = None
        for parameter in self.parameters.values():
            parameter.grad = None

    def __call__(self) -> None:
        self.clear()
        loss = self.model(input_ids=self.tokens, labels=self.tokens).loss
        loss.backward()
        self.loss = loss.detach()


def without_mask(model: Any) -> None:
    """Sets torch's attention for a model, as "sdpa" does, but without the mask that transformers 5.17 makes in compiled graphs."""
    import transformers
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    from blocknb.torch.nn.hugging_face import causal_mask

    transformers.AttentionInterface.register(UNMASKED_ATTENTION, sdpa_attention_forward)
    transformers.AttentionMaskInterface.register(UNMASKED_ATTENTION, causal_mask)
    model.set_attn_implementation(UNMASKED_ATTENTION)


def contestants(model: Any, parameters: dict[str, Any], tokens: Any) -> dict[str, Callable[[], LlamaStep]]:
    """The makers of the contestants, by name."""
    import torch

    import blocknb.torch

    def ours(**options: Any) -> LlamaStep:
        replaced = sharing(model)
        blocknb.torch.replace(replaced, **options)
        return LlamaStep(torch.compile(replaced, backend="blocknb", dynamic=False), parameters, tokens)

    def compiled() -> LlamaStep:
        return LlamaStep(torch.compile(sharing(model), dynamic=False), parameters, tokens)

    def unmasked() -> LlamaStep:
        copied = sharing(model)
        without_mask(copied)
        return LlamaStep(torch.compile(copied, dynamic=False), parameters, tokens)

    return {
        EAGER: lambda: LlamaStep(model, parameters, tokens),
        OURS: ours,
        COMPILED: compiled,
        UNMASKED: unmasked,
        ALL: lambda: ours(attention="causal", fused_loss="keep_logits"),
        LEAN: lambda: ours(attention="causal", fused_loss=True),
    }


def samples(parameters: dict[str, Any]) -> list[str]:
    """The names of the parameters whose gradients are compared: vectors, and the matrices of the first and the last layer."""
    layers = [name.split(".layers.")[1].split(".")[0] for name in parameters if ".layers." in name]
    ends = {f".layers.{layers[0]}.", f".layers.{layers[-1]}."} if layers else set()
    return [
        name for name, p in parameters.items() if p.dim() == 1 or ".layers." not in name or any(e in name for e in ends)
    ]


def reference(model: Any, tokens: Any, names: list[str]) -> tuple[float, dict[str, Any]]:
    """The loss and the sampled gradients of an eager step in fp32."""
    import torch

    wide = copy.deepcopy(model).to(torch.float32)
    wide.gradient_checkpointing_enable()  # fp32 takes twice the memory
    loss = wide(input_ids=tokens, labels=tokens).loss
    loss.backward()
    return float(loss.detach()), {n: p.grad for n, p in wide.named_parameters() if n in names}


def distances(step: LlamaStep, exact: tuple[float, dict[str, Any]]) -> tuple[float, float]:
    """(that of the loss, that of the farthest gradient) from the reference, relative, after a step."""
    loss = abs(float(step.loss) - exact[0]) / abs(exact[0])
    worst = 0.0
    for name, value in exact[1].items():
        found = step.parameters[name].grad
        off = float((found.float() - value).norm() / (value.norm() + 1e-30))
        worst = max(worst, off if off == off else float("inf"))
    return loss, worst


def wrong(found: tuple[float, float], limits: tuple[float, float] | None) -> str:
    """The fault of the distances of a contestant, by those of the eager step in bf16; "" if there is none. A NaN is wrong."""
    if limits is None:
        return "not checked: the eager step in bf16, which gives the limits, failed"
    if found[0] <= SLACK * limits[0] + 1e-3 and found[1] <= SLACK * limits[1]:
        return ""
    return f"wrong: {found} is farther from fp32 than {SLACK:g} times eager's {limits}"


@dataclass
class LlamaResults:
    """The results by contestant: distances from fp32, peak bytes and Timings. `problems` says why a contestant has none."""

    off: dict[str, tuple[float, float]] = field(default_factory=dict)
    peaks: dict[str, int] = field(default_factory=dict)
    times: dict[str, Timing] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)

    def rows(self) -> list[Row]:
        """A row per contestant, for the table and as JSON."""
        found: list[Row] = []
        for name in (OURS, ALL, LEAN, COMPILED, UNMASKED, EAGER):
            if name not in self.off:
                found.append({"contestant": name, "problem": self.problems.get(name, "not measured")})
                continue
            timing, against = self.times.get(name), session.ratio(self.times, name, OURS)
            found.append(
                {
                    "contestant": name,
                    "step ms": timing.median if timing else "",
                    "its time / ours": ratio_text(against) if against else "",
                    "peak MiB": self.peaks[name] / 2**20 if name in self.peaks else "",
                    "loss off": self.off[name][0],
                    "gradients off": self.off[name][1],
                    "problem": self.problems.get(name, ""),
                }
            )
        return found

    def verdicts(self) -> list[str]:
        """The step time and the peak memory of ours against those of PEERS, and what is wrong with a contestant."""
        lines = []
        for name, peer in PEERS.items():
            if {name, peer} & self.problems.keys():
                continue
            if (found := session.ratio(self.times, peer, name)) is not None:
                word = session.verdict(found.value, FLOOR, GOAL)
                lines.append(
                    f"  {word:<7}step, time of {peer} over that of {name}: {found.value:.3f}; floor {FLOOR:g}, goal {GOAL:g}"
                )
            if {name, peer} <= self.peaks.keys():
                share = self.peaks[name] / self.peaks[peer]
                word = session.verdict(share, 1.0, MEMORY_GOAL, lower=True)
                lines.append(
                    f"  {word:<7}peak memory of {name}: {share:.3f} of that of {peer}; floor 1, goal {MEMORY_GOAL:g}"
                )
        return lines + [f"  MISSED {name}: {why}" for name, why in self.problems.items()]


def measure(size: LlamaSize, clock: StepClock, seed: int = 1, keep: session.Keep = lambda rows: None) -> LlamaResults:
    """Makes, checks and times the contestants. One that fails or is wrong is not timed; `problems` has the reason. `keep` gets the rows so
    far."""
    import torch

    results = LlamaResults()
    model = model_of(size, clock.device, seed)
    parameters = dict(model.named_parameters())
    tokens = torch.randint(size.vocabulary, (size.batch, size.tokens), device=clock.device)
    count = sum(p.numel() for p in parameters.values())
    print(f"  {count / 1e9:.2f} B parameters, {size.batch} x {size.tokens} tokens", flush=True)
    exact = reference(model, tokens, samples(parameters))
    gc.collect()
    steps: dict[str, LlamaStep] = {}
    for name, make in contestants(model, parameters, tokens).items():
        try:
            steps[name] = _first(name, make, exact, results, clock)
        except Exception as error:  # a compiler may raise anything; the others are measured anyway
            results.problems[name] = f"failed: {one_line(error)}"
        print(f"  {name}: {results.problems.get(name) or _line(results, name)}", flush=True)
        for parameter in parameters.values():
            parameter.grad = None
        if name == COMPILED:  # a first result, before another one compiles
            results.times = _timed(steps, results, clock, {OURS, COMPILED})
            print("\n".join(results.verdicts()), flush=True)
        keep(results.rows())
    del exact
    results.times = _timed(steps, results, clock, set(steps))
    return results


def _timed(steps: dict[str, LlamaStep], results: LlamaResults, clock: StepClock, names: set[str]) -> dict[str, Timing]:
    """The times of those named contestants that have no problem."""
    return clock.cold({name: s for name, s in steps.items() if name in names and name not in results.problems})


def _first(
    name: str,
    make: Callable[[], LlamaStep],
    exact: tuple[float, dict[str, Any]],
    results: LlamaResults,
    clock: StepClock,
) -> LlamaStep:
    """Compiles a contestant, compares its first step, and measures the peak of its second one."""
    from blocknb.bench.torch_layers.layers import peak_bytes

    step = make()
    step()
    results.off[name] = found = distances(step, exact)
    if why := wrong(found, results.off.get(EAGER)):
        results.problems[name] = why
    if clock.device == "cuda":
        step.clear()
        held = sum(p.numel() * p.element_size() for p in step.parameters.values())
        results.peaks[name] = held + peak_bytes(step)
    return step


def _line(results: LlamaResults, name: str) -> str:
    peak = f"peak {results.peaks[name] / 2**20:.0f} MiB, " if name in results.peaks else ""
    loss, gradients = results.off[name]
    return f"{peak}loss off by {loss:.1e}, gradients by {gradients:.1e}"


def run(options: BenchOptions, keep: session.Keep = lambda rows: None) -> list[Row]:
    """Measures the model, prints and returns a row per contestant. Raises Unsupported without torch, transformers or a GPU."""
    session.require("torch", "transformers", "triton")
    clock = StepClock("cuda", min(options.rounds, ROUNDS), SECONDS, options.clean_cache)
    print(session.head("cuda", "Llama, bf16, random weights: a training step without the optimizer"), flush=True)
    results = measure(LlamaSize(), clock, options.seed or 1, keep)
    rows = results.rows()
    show("Step time in turns, and peak memory with parameters and gradients", rows)
    print("\n".join(results.verdicts()), flush=True)
    return [session.described("cuda"), *rows]
