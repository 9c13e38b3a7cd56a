"""One file a rule. The docstring of the file is the page of the rule; its examples are tested."""
