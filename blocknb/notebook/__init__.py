"""The notebook side: the cell magic, the card that a Trace becomes, what a notebook reports, what the page has loaded."""
