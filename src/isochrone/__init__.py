"""Isochrone turns a set of LLM inference engines into one cluster."""

__version__ = "0.1.0"
