"""The views that teach tiling: Step, Launch and Footprint.

Step shows the values of a program line by line. Launch shows the tiles on the arrays, program by program. Footprint shows which program
stores which element. Each module computes the document's part for one view, when the user asks for it."""
