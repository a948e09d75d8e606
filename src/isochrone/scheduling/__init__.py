"""Where a request goes, when, or why not: price in seconds, late binding, admission, policies."""
