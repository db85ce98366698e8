"""Passes on the distributed level, where every tile has a layout: which thread holds which element."""
