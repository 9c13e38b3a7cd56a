"""The check at the resource, one file a kind of resource. A fence knows tokens, not engines."""
