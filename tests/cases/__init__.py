"""Traps for a rewriting pass: small modules with one catch each, and the state that must not be disturbed.

A value case is a builder of (module, args, kwargs): its rewritten outputs must hold the contract against eager
and float64, its inputs and state must be left as eager leaves them. A behaviour case is a function that gets
``rewrite`` and asserts. Both register themselves, in ``VALUES`` and ``BEHAVIOURS`` of ``case``.
"""
