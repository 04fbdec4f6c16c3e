"""Traps for a rewriting pass: small modules with one catch each, and the state that must not be disturbed."""
