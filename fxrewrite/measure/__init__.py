"""Measurements of a rewritten model: errors and times, site by site and end to end."""
