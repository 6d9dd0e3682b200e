"""The fleet: yoked.toml, and which interfaces its hosts can use."""
