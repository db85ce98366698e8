"""The notebook side of blocknb: the cell magic, the card of a compilation, reports of notebooks, and the state of the lab extension."""
