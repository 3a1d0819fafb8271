"""Magics."""
