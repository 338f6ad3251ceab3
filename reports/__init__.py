"""Reports of a run: one HTML file, Markdown, terminal tables. They read `results` only."""
