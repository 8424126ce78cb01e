"""Between Arrow and Python values, exact in both directions."""
