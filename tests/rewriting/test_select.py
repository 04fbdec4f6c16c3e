"""Selection: of overlapping candidates the set that covers most; of nested ones one a place."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from fxrewrite.report import Reason, Site
from fxrewrite.rewriting.candidates import Candidate
from fxrewrite.rewriting.select import one_per_place, select, shadow


@dataclass(eq=False)
class Match:
    root: str
    computed: frozenset = frozenset()
    remade: frozenset = frozenset()


def candidate(nodes, kind="sdpa", status="matched", root=None):
    root = root or nodes[-1]
    found = Match(root, frozenset(nodes))
    return Candidate(None, found, Site("", kind, status, "Rule", node=f"node_{root}"))


def chosen(*candidates):
    return ["".join(sorted(c.nodes)) for c in select(list(candidates))]


def test_what_does_not_overlap_is_chosen():
    assert chosen(candidate("ab"), candidate("cd"), candidate("e")) == ["ab", "cd", "e"]
    assert chosen() == []


def test_the_larger_wins_and_the_other_says_why():
    small, large = candidate("cd", kind="linear"), candidate("abcd", root="d")
    assert chosen(small, large) == ["abcd"]
    assert small.site.code is Reason.OVERLAP
    assert small.site.detail == "part of the sdpa site at node_d"
    assert large.site.matched


@pytest.mark.parametrize(
    ("sets", "best"),
    [
        (["abc", "cde", "efg"], ["abc", "efg"]),  # a chain: both ends
        (["ab", "cd", "abcd"], ["abcd"]),  # one large site beats two halves
        (["ab1", "cd2", "abcde"], ["abcde"]),  # though the halves have more nodes
        (["abcdefgh", "ax", "by", "cz"], ["abcdefgh"]),
        (["abc", "ax", "by", "cz"], ["ax", "by", "cz"]),
    ],
)
def test_most_is_covered(sets, best):
    assert chosen(*(candidate(s) for s in sets)) == best


def test_components_do_not_influence_each_other():
    assert chosen(candidate("ab"), candidate("bcd"), candidate("xy"), candidate("yz")) in (
        ["bcd", "xy"],
        ["bcd", "yz"],
    )


@pytest.mark.parametrize("code", [Reason.NO_KERNEL, Reason.ESCAPES, Reason.INTERNAL])
def test_what_a_chosen_site_covers_is_its_part_whatever_refused_it(code):
    inner, apart = (candidate(nodes, kind="linear", status="rejected") for nodes in ("bc", "xy"))
    inner.site.code = apart.site.code = code
    outer = candidate("abc", kind="fp8_matmul", root="c")
    shadow([inner, apart, outer], [outer])
    fault = code is Reason.INTERNAL  # which must not go unseen
    assert inner.winner is (None if fault else outer)
    assert inner.site.code is (code if fault else Reason.OVERLAP)
    assert (apart.winner, apart.site.code, outer.winner) == (None, code, None)


def test_what_is_replaced_in_part_is_no_part():
    sharing = candidate("zc", kind="fp8_matmul", status="rejected", root="c")
    chosen = candidate("bc", kind="linear")
    sharing.site.code = Reason.ESCAPES
    shadow([sharing, chosen], [chosen])
    assert (sharing.winner, sharing.site.code) == (None, Reason.ESCAPES)


def test_overlapping_without_being_nested_is_told_apart():
    loser, winner = candidate("abc", kind="linear"), candidate("bcde")
    assert chosen(loser, winner) == ["bcde"]
    assert loser.site.detail == "shares nodes with the sdpa site at node_e"
    assert not loser.covered


def test_nested_candidates_of_a_kind_are_one_place():
    inner, outer = candidate("ab", kind="linear"), candidate("abc", kind="linear")
    assert one_per_place([inner, outer]) == [outer]


def test_a_matched_part_hides_the_rejected_whole():
    inner, outer = candidate("ab", kind="linear"), candidate("abc", kind="linear", status="rejected")
    assert one_per_place([inner, outer]) == [inner]


def test_other_kinds_and_places_stay():
    linear, attention = candidate("ab", kind="linear"), candidate("abc")
    far = candidate("xy", kind="linear")
    assert one_per_place([linear, attention, far]) == [linear, attention, far]


def test_sites_that_share_an_inner_value_are_two():
    one = candidate("wab", kind="fp8_matmul", status="rejected")
    two = candidate("wcd", kind="fp8_matmul", status="rejected")
    assert one_per_place([one, two]) == [one, two]
