"""Clocks and statistics: what other rooms use to turn measurements into figures."""
