"""The keys of a directory by folder: what stands before the last slash of a key.

A swarm's members read and watch whole folders, so that what a read costs follows from the folders that it names, not
from the number of all keys.
"""

from pipelined.directory.api import Entry, Prefixes


class Folders:
    """A second index of all entries."""

    def __init__(self) -> None:
        self._folders: dict[str, dict[str, Entry]] = {}

    def place(self, key: str, entry: Entry | None) -> None:
        """Put a key, or delete it."""
        folder = key[: key.rfind("/") + 1]
        keys = self._folders.setdefault(folder, {})
        keys.pop(key, None)
        if entry is not None:
            keys[key] = entry
        if not keys:
            del self._folders[folder]

    def below(self, prefix: Prefixes) -> dict[str, Entry]:
        """All that begins with one of the prefixes.

        Cost: one look at each folder, and at each key of those whose keys may begin so.
        """
        prefixes = (prefix,) if isinstance(prefix, str) else prefix
        found: dict[str, Entry] = {}
        for folder, keys in self._folders.items():
            if folder.startswith(prefixes):
                found.update(keys)
            elif any(each.startswith(folder) for each in prefixes):
                found.update((key, entry) for key, entry in keys.items() if key.startswith(prefixes))
        return found
