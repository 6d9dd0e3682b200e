"""Why a run stands: a history of what its hosts say in, causes out."""
