"""The views that teach tiling: Step (the values of a program line by line), Launch (tiles on the arrays, program by program) and
Footprint (which program stores which element). Each module computes the document's part for one view, when the user asks for it."""
