"""Names of CPUs whose code runs on this machine, with fewer features than it has: x86's on x86, Arm's on Arm."""

from __future__ import annotations

from blocknb.target import Target

X86 = Target.parse("cpu").isa == "x86_64"

#: The CPU with the fewest features.
BASELINE = "cpu:x86-64" if X86 else "cpu:aarch64"

#: A CPU with SSE4.2, and one with AVX2, FMA and fp16 conversion; all of Arm's have what these tests distinguish.
OLDER = ("cpu:x86-64-v2", "cpu:haswell") if X86 else ("cpu:aarch64",)

#: The newest of them.
NEWER = OLDER[-1]
