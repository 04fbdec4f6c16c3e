"""Selection: of matched candidates that share nodes, the set that covers most."""

from __future__ import annotations

import networkx as nx

from ..report import Reason
from .candidates import Candidate


def select(candidates: list[Candidate]) -> list[Candidate]:
    """The best set without overlaps; the others are rejected with reason OVERLAP.

    A maximum weight independent set of the conflict graph, the weight of a candidate being the
    number of nodes that it replaces (squared, so that one large site beats two halves of it).
    """
    conflicts = nx.Graph()
    conflicts.add_nodes_from(range(len(candidates)))
    owners: dict[object, list[int]] = {}
    for index, candidate in enumerate(candidates):
        for node in candidate.nodes - candidate.match.remade:
            for other in owners.setdefault(node, []):
                conflicts.add_edge(index, other)
            owners[node].append(index)
    chosen: set[int] = set()
    for component in nx.connected_components(conflicts):
        if len(component) == 1:
            chosen |= component
            continue
        compatible = nx.complement(conflicts.subgraph(component))
        for index in component:
            compatible.nodes[index]["weight"] = len(candidates[index].nodes) ** 2
        best, _ = nx.max_weight_clique(compatible)
        chosen |= set(best)
        for index in set(component) - set(best):
            loser = candidates[index]
            winners = [candidates[w] for w in best if conflicts.has_edge(w, index)]
            loser.lose_to(max(winners, key=lambda winner: len(winner.nodes & loser.nodes)))
    return [candidate for index, candidate in enumerate(candidates) if index in chosen]


def shadow(candidates: list[Candidate], chosen: list[Candidate]) -> None:
    """Give those that lie within a chosen candidate the reason OVERLAP: they are replaced, whatever had
    refused them on their own. A fault keeps its reason.
    """
    owners = {node: candidate for candidate in chosen for node in candidate.nodes}
    for candidate in candidates:
        winner = owners.get(candidate.match.root)
        if winner is None or candidate.site.matched or candidate.winner is not None:
            continue
        if candidate.nodes <= winner.nodes and candidate.site.code is not Reason.INTERNAL:
            candidate.lose_to(winner)


def one_per_place(candidates: list[Candidate]) -> list[Candidate]:
    """Without those candidates that another of the same kind, matched or larger, covers.

    A linear followed by a bias is one site, not two; nor is the linear alone a second, rejected one.
    """
    ranked = sorted(candidates, key=lambda c: (c.site.matched, len(c.nodes)), reverse=True)
    nodes: dict[str, set[object]] = {}
    roots: dict[str, set[object]] = {}
    kept = []
    for candidate in ranked:
        inner = nodes.setdefault(candidate.site.kind, set())
        ends = roots.setdefault(candidate.site.kind, set())
        # nested, not merely sharing a decoded weight
        if candidate.match.root not in inner and not ends & candidate.nodes:
            inner |= candidate.nodes
            ends.add(candidate.match.root)
            kept.append(candidate)
    return [candidate for candidate in candidates if candidate in kept]
