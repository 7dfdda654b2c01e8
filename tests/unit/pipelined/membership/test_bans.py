"""A ban lasts until a member announces itself again, and then for a while, and is forgotten when it does neither."""

from pipelined.membership.bans import LONGEST_PAUSE_S, AnnouncedMember, Bans


def test_a_ban_without_effect_is_forgotten():
    bans, gone = Bans(), AnnouncedMember("tcp://a:1", 7)
    bans.ban(gone, now=0.0)
    bans.forget(set(), now=2.0)
    assert bans.ban(AnnouncedMember("tcp://a:1", 8), now=2.0) == 4.0, "a relapse was forgotten"
    bans.forget(set(), now=6.1)
    assert bans.ban(AnnouncedMember("tcp://a:1", 9), now=6.1) == 7.1, "it had behaved for as long as the ban had lasted"


def test_a_member_stays_banned_for_as_long_as_it_announces_nothing_new():
    bans, member = Bans(), AnnouncedMember("tcp://a:1", 7)
    bans.ban(member, now=0.0)
    bans.forget({member}, now=1e6)
    assert bans.available_at(member, now=1e6) == float("inf")
    bans.forget({AnnouncedMember("tcp://a:1", 8)}, now=1e6)
    assert bans.available_at(member, now=1e6) == 1e6, "no member announced itself so"


def test_a_ban_doubles_up_to_the_longest():
    bans, now = Bans(), 0.0
    lengths = [bans.ban(AnnouncedMember("tcp://a:1", number), now) - now for number in range(20)]
    assert lengths[:3] == [1.0, 2.0, 4.0] and lengths[-1] == LONGEST_PAUSE_S
