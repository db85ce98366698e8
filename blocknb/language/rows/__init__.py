"""The rows of the op table, by group. `blocknb.language.ops` assembles them."""
