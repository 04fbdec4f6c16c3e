"""Helpers shared by the tests: float64 references, the contract between outputs, model builders."""
