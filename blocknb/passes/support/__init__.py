"""Helpers that several passes share: analyses of one loop or buffer, rewrite rules, plans."""
