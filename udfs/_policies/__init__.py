"""Options, frozen and checked, and pure decisions: of what happened and when, what comes next."""
