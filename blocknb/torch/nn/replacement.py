"""`replace(model)`: puts layers of blocknb into a model of torch or Hugging Face, explicitly and reversibly.

No class is patched: each replaced module is one attribute of its parent, and `undo` restores it. A replacement shares the parameters of the
original, so optimizers, checkpoints and `state_dict` see no difference. Modules are recognised by class name and by the parameters and
attributes that their computation needs. If the caller passes inputs of the model, each replacement is first compared with its original on
the tensors that the original receives.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from blocknb.torch.nn import hugging_face
from blocknb.torch.nn.activations import ACTIVATIONS, GatedMLP
from blocknb.torch.nn.losses import CrossEntropyLoss
from blocknb.torch.nn.norms import LayerNorm, RMSNorm
from blocknb.torch.nn.replacement_makers import MORE_MAKERS

#: The largest difference that passes, relative to the largest value of the original's output, by the output's dtype.
TOLERANCES = {torch.float64: 1e-10, torch.float32: 1e-4, torch.float16: 4e-3, torch.bfloat16: 3e-2}


class ReplacementError(ValueError):
    """A replacement computes other values than the original."""


@dataclass(frozen=True)
class Replaced:
    """One replaced module. `difference` is the largest one found, relative to the largest value, or None if it was not compared."""

    path: str
    original: Any
    replacement: Any
    difference: float | None = None

    def __repr__(self) -> str:
        checked = "not compared" if self.difference is None else f"largest relative difference {self.difference:.2g}"
        kind, new = type(self.original), type(self.replacement)
        return f"{self.path}: {kind.__module__.split('.')[0]}'s {kind.__name__} -> blocknb's {new.__name__} ({checked})"


@dataclass
class Replacements:
    """The changes of `replace` in a model, and why it left similar modules alone (`skipped`, by path). `settings` describes the other
    settings that it changed, and restores them. `undo()` restores everything. As a context manager, it does so at the end of the block."""

    model: Any
    replaced: list[Replaced] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    settings: dict[str, Callable[[], None]] = field(default_factory=dict)

    def __repr__(self) -> str:
        lines = [f"{len(self.replaced)} modules replaced", *(f"  {r}" for r in self.replaced)]
        lines += [f"  {setting}" for setting in self.settings]
        return "\n".join([*lines, *(f"  {path}: left as it is, because {why}" for path, why in self.skipped.items())])

    def __len__(self) -> int:
        return len(self.replaced)

    def undo(self) -> Any:
        """Puts the original modules back, and returns the model."""
        for each in reversed(self.replaced):
            each.original.train(each.replacement.training)
            _put(self.model, each.path, each.original)
        for take_back in self.settings.values():
            take_back()
        self.replaced, self.settings = [], {}
        return self.model

    def __enter__(self) -> Replacements:
        return self

    def __exit__(self, *error: Any) -> None:
        self.undo()


def replace(
    model: Any, *inputs: Any, only: Sequence[str] | None = None, tolerance: float | None = None, attention: bool | str = False,
    fused_loss: bool | str = False, **keywords: Any,
) -> Replacements:  # fmt: skip
    """Replaces norms, gated MLPs, embeddings, experts, PEFT's adapters and losses below a model by layers of blocknb, and returns the
    Replacements.

    With `inputs` and `keywords`, `model(*inputs, **keywords)` runs once without gradients. Each replacement is compared with its original
    on the tensors that reach the original. `only` lists the names of the classes to replace ("LlamaRMSNorm"). `tolerance` replaces the
    limits by dtype. Raises ReplacementError, with the model unchanged, if a replacement differs by more, and for names in `only` without a
    replacement.

    Two options are for language models of transformers, and raise ValueError for others. `attention` True sets `attention` for the model;
    "causal" also leaves out all masks, for batches without padding and packed sequences. `fused_loss` computes the loss by
    `linear_cross_entropy` in training with labels. It computes no logits, and the output of the model has the last hidden states in their
    place. "keep_logits" is faster, and holds the logits once while the loss is computed.
    """
    if unknown := [name for name in only or () if name not in _MAKERS]:
        raise ReplacementError(
            f"no layer of blocknb replaces {', '.join(unknown)}; it replaces {', '.join(sorted(_MAKERS))}"
        )
    found = Replacements(model)
    planned = _planned(model, only, found.skipped)
    _set_options(found, planned, attention, fused_loss)
    try:
        differences = _compared(model, planned, inputs, keywords, tolerance) if inputs or keywords else {}
    except Exception:
        found.undo()
        raise
    for path, (module, made) in planned.items():
        _put(model, path, made)
        found.replaced.append(Replaced(path, module, made, differences.get(path)))
    return found


def _planned(model: Any, only: Sequence[str] | None, skipped: dict[str, str]) -> dict[str, tuple[Any, Any]]:
    """(the module, its replacement) by path. Writes the reasons of those without a replacement to `skipped`."""
    planned: dict[str, tuple[Any, Any]] = {}
    for path, module in model.named_modules():
        maker = _MAKERS.get(type(module).__name__)
        if maker is None or type(module).__module__.startswith("blocknb."):
            continue
        if only is not None and type(module).__name__ not in only:
            continue
        if not path:
            skipped["(the model itself)"] = "only modules below the model are replaced"
            continue
        made = maker(module)
        if made is None:
            continue
        if isinstance(made, str):
            skipped[path] = made
        elif not _has_hooks(module):
            planned[path] = module, made.train(module.training)
        else:
            skipped[path] = "it has hooks"
    return planned


def _set_options(
    found: Replacements, planned: dict[str, tuple[Any, Any]], attention: bool | str, fused: bool | str
) -> None:
    """Sets the attention and the loss of a model. Raises ValueError, with the model unchanged, for a model that does not fit."""
    if attention not in (False, True, "causal"):
        raise ValueError(f'attention is {attention!r}, but it must be True, False or "causal"')
    if fused not in (False, True, "keep_logits"):
        raise ValueError(f'fused_loss is {fused!r}, but it must be True, False or "keep_logits"')
    try:
        if fused:
            head, made, take_back = hugging_face.fuse_loss(found.model, fused == "keep_logits")
            planned["lm_head"], found.settings["the loss without logits in training"] = (head, made), take_back
            if _has_hooks(head):
                raise ValueError("fused_loss=True replaces lm_head, which has hooks: remove them first")
        if attention:
            take_back = hugging_face.use_attention(found.model, attention == "causal")
            found.settings["attention of blocknb" + (", causal without masks" if attention == "causal" else "")] = (
                take_back
            )
    except Exception:
        found.undo()
        raise


def _put(model: Any, path: str, module: Any) -> None:
    parent, _, name = path.rpartition(".")
    model.get_submodule(parent)._modules[name] = module


def _has_hooks(module: Any) -> bool:
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return any(getattr(module, name, None) for name in hooks)


# ---- the comparison ------------------------------------------------------------------------------------------------------


def _compared(
    model: Any, planned: dict[str, Any], inputs: Any, keywords: Any, tolerance: float | None
) -> dict[str, float]:
    """The largest relative difference by path. Raises ReplacementError if one is above the limit."""
    differences: dict[str, float] = {}
    handles = []
    for path, (module, made) in planned.items():
        hook = _comparison(path, module, made, differences, tolerance)
        handles.append(module.register_forward_hook(hook, with_kwargs=True))
    state = torch.random.get_rng_state()
    try:
        with torch.no_grad():
            model(*copy.deepcopy(inputs), **copy.deepcopy(keywords))
    finally:
        torch.random.set_rng_state(state)
        for handle in handles:
            handle.remove()
    return differences


def _comparison(
    path: str, module: Any, made: Any, differences: dict[str, float], tolerance: float | None
) -> Callable[..., None]:
    def compare(_: Any, args: Any, kwargs: Any, output: Any) -> None:
        found = made(*args, **kwargs)
        pairs = zip(found, output, strict=True) if isinstance(output, tuple) else [(found, output)]
        for ours, right in pairs:
            off = _difference(path, module, ours, right, tolerance)
            differences[path] = max(off, differences.get(path, 0.0))

    return compare


def _difference(path: str, module: Any, found: Any, output: Any, tolerance: float | None) -> float:
    """The largest relative difference of two tensors. Raises ReplacementError if it is above the limit, or a shape or dtype differs."""
    if found.shape != output.shape or found.dtype != output.dtype:
        message = f"{tuple(found.shape)} and {found.dtype}, not {tuple(output.shape)} and {output.dtype}"
        raise ReplacementError(f"{path}: the replacement of {type(module).__name__} returns {message}")
    wide = torch.float64
    scale = float(output.abs().max()) if output.numel() else 0.0
    off = float((found.to(wide) - output.to(wide)).abs().max()) / (scale or 1.0) if output.numel() else 0.0
    limit = TOLERANCES[output.dtype] if tolerance is None else tolerance
    if not off <= limit:  # also for a NaN
        message = f"differs from {type(module).__name__} by {off:.2g} of its largest value; the limit is {limit:.2g}"
        raise ReplacementError(f"{path}: the replacement {message}. Leave it out with only=")
    return off


# ---- the replacements by class name --------------------------------------------------------------------------------------


def _layer_norm(module: Any) -> Any:
    if len(module.normalized_shape) != 1:
        return "it normalises more than one axis"
    made = LayerNorm(module.normalized_shape, module.eps, elementwise_affine=False)
    made.weight, made.bias = module.weight, module.bias
    return made


def _torch_rms_norm(module: Any) -> Any:
    if len(module.normalized_shape) != 1:
        return "it normalises more than one axis"
    made = RMSNorm(module.normalized_shape, module.eps, elementwise_affine=False)
    made.weight = module.weight
    return made


def _hugging_face_norm(casting: str) -> Callable[[Any], Any]:
    def make(module: Any) -> Any:
        eps = getattr(module, "variance_epsilon", getattr(module, "eps", None))
        if eps is None or getattr(module, "weight", None) is None:
            return "it has no weight or no eps"
        made = RMSNorm(module.weight.shape[0], eps, elementwise_affine=False, casting=casting)
        made.weight = module.weight
        return made

    return make


def _mlp(module: Any) -> Any:
    """A gated MLP whose activation is one of ours. Its linear layers stay as they are."""
    if any(not hasattr(module, name) for name in ("gate_proj", "up_proj", "down_proj")):
        return "it has no gate_proj, up_proj and down_proj"
    config = getattr(module, "config", None)
    name = getattr(config, "hidden_act", None) or getattr(config, "hidden_activation", None)
    name = getattr(config, "hidden_activation", None) or name
    if name not in ACTIVATIONS:
        return f"its activation is {name!r}"
    with torch.device("meta"):
        made = GatedMLP(1, 1, name)
    made.gate_proj, made.up_proj, made.down_proj = module.gate_proj, module.up_proj, module.down_proj
    return made


def _cross_entropy(module: Any) -> Any:
    if module.weight is not None or module.label_smoothing:
        return "it has class weights or label smoothing"
    return CrossEntropyLoss(ignore_index=module.ignore_index, reduction=module.reduction)


#: Prefixes of class names in Hugging Face's transformers, by the rounding of their norms.
FAMILIES = ("Llama", "Mistral", "Ministral", "Qwen2", "Qwen3")
GEMMA = ("Gemma", "Gemma2", "Gemma3")
_MAKERS: dict[str, Callable[[Any], Any]] = {
    "LayerNorm": _layer_norm,
    "RMSNorm": _torch_rms_norm,
    **dict.fromkeys(
        [f"{name}RMSNorm" for name in (*FAMILIES, "Mixtral", "Phi3", "Qwen2Moe", "Qwen3Moe")],
        _hugging_face_norm("llama"),
    ),
    **dict.fromkeys([f"{name}RMSNorm" for name in GEMMA], _hugging_face_norm("gemma")),
    **dict.fromkeys([f"{name}MLP" for name in (*FAMILIES, *GEMMA, "Qwen2Moe", "Qwen3Moe")], _mlp),
    "CrossEntropyLoss": _cross_entropy,
    **MORE_MAKERS,
}
