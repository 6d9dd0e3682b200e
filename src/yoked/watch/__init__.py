"""Look on while a run goes on: the terminal's view, the page's, and what both show."""
