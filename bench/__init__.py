"""Measurements, as tables. Each number stands beside its limit; nothing here fails on a slow day."""
