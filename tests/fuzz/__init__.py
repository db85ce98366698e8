"""Random block programs and the properties that hold for each: see `generator`, `program` and `shrink`."""
