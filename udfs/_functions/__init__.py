"""User functions: their base classes and contexts, and how their signatures and annotations are read."""
