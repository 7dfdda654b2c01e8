"""Names for what was rejected. The one rule: nothing a stranger wrote becomes part of a name, so names stay few."""

import re

_FACTS = re.compile(r"[(:;'\"\[]|, got")


def reason_of(error: Exception) -> str:
    """What an error of ours says before its facts: "too many blocks (got: 65, limit: 64)" is "too many blocks"."""
    return _FACTS.split(str(error), maxsplit=1)[0].strip() or type(error).__name__
