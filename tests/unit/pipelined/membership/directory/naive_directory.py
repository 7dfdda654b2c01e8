"""The directory as one would write it first: plain dictionaries, everything kept, everything looked through."""

from pipelined.membership.directory import Change, Entry


class NaiveDirectory:
    """What `Machine` should do, without limits, requests or transitions."""

    def __init__(self):
        self.revision, self.entries, self.leases, self.history = 0, {}, {}, []

    def transact(self, expect, put, delete, lease, now):
        """The revision, or why not: "lease lost", or what is found instead of what was expected."""
        self.expire(now)
        if lease and lease not in self.leases:
            return "lease lost"
        if any(self.revision_of(key) != revision for key, revision in expect.items()):
            return {key: self.entries.get(key) for key in expect}
        gone = [key for key in delete if key in self.entries]
        if put or gone:
            self.write({**{key: (value, lease) for key, value in put.items()}, **{key: None for key in gone}})
        return self.revision

    def revision_of(self, key):
        return self.entries[key].revision if key in self.entries else 0

    def write(self, changes):
        self.revision += 1
        for key, put in changes.items():
            self.entries.pop(key, None)
            if put:
                self.entries[key] = Entry(put[0], self.revision, put[1])
            self.history.append(Change(key, self.entries.get(key), self.revision))

    def grant(self, lease, seconds, now):
        self.leases[lease] = (now + seconds, seconds, False)

    def renew(self, lease, now):
        self.expire(now)
        if lease not in self.leases:
            return False
        self.leases[lease] = (now + self.leases[lease][1], self.leases[lease][1], False)
        return True

    def shorten(self, lease, end):
        if lease in self.leases:
            before, seconds, spared = self.leases[lease]
            self.leases[lease] = (min(before, end), seconds, spared)

    def extend_after_pause(self, now):
        for lease, (end, seconds, spared) in self.leases.items():
            if end <= now and not spared:
                self.leases[lease] = (now + min(now - end, seconds), seconds, True)

    def expire(self, now):
        for lease, (end, _, _) in sorted(self.leases.items(), key=lambda each: (each[1][0], each[0])):
            if end <= now:
                self.end(lease)

    def end(self, lease):
        if self.leases.pop(lease, None):
            bound = sorted(key for key, entry in self.entries.items() if entry.lease == lease)
            if bound:
                self.write(dict.fromkeys(bound))

    def changes(self, prefix, after):
        return [change for change in self.history if change.revision > after and change.key.startswith(prefix)]
