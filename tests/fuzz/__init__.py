"""Random block programs, and what must hold for each: see `generator`, `program` and `shrink`."""
