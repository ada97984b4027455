"""Runners: GPU servers that run one GitHub job each."""
