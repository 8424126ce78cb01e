"""Words and pictures for people, made of plain figures; nothing here changes a run."""
