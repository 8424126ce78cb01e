"""Jobs of random shape against services that fail, while processes are killed: `scripts/chaos` runs them."""
