"""What several passes share: analyses of one loop or buffer, rewriting rules, plans."""
