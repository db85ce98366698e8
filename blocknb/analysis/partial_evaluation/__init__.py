"""Partial evaluation of a launch: computes what scalars, grid and program ids determine, without the arrays.

Source: Jones, Gomard, Sestoft, "Partial Evaluation and Automatic Program Generation" (1993).

`evaluator.PartialEvaluator` walks a Func of any level for a batch of programs. It computes only the values that a client asks for, and
those on which bounds and conditions depend. Values are factored tiles (`factored_tiles`) or `Unknown`, with the reason. It reports each
op to the observer of the batch. Four clients in `profile/` give the numbers of the card, and differ in this:

- `work` follows all programs and iterations of the tile IR. It walks one iteration of a loop whose iterations do the same work, and
  scales the counts. It skips control flow that depends on loaded data, and reports the numbers as unknown.
- `addresses` follows one program of any IR up to one iteration of its loops. It assumes one iteration of a loop with unknown bounds, and
  walks both branches of an unknown condition. The start of a tile in every program comes from a batch of all programs.
- `schedule_model` follows the CTAs of one multiprocessor in the memory IR, one batch per warp role. The walk is a generator, so that an
  event suspends the role until its copy or barrier is complete. It refuses control flow that depends on loaded data.
- `replay` asks `work`, so that the roofline and the card's rate have one source.
"""
