"""Passes on the tile level, where a tile has no layout yet. The CPU's pipeline ends here."""
