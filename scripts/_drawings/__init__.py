"""The pictures of the documentation; each module draws one, from what the real operator does."""
