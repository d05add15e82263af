"""Operations of a pass that are put together before it is compiled, because Inductor does not know our kernels."""

import itertools
import operator

import torch
from torch.fx import Graph, Node
from torch.fx.experimental.symbolic_shapes import statically_known_true, sym_eq

from specviz.passes.kernels.operations import COPY, GATED, LINEAR

#: What `FewRowsLinear` does to its inputs, which then are rows.
_IN_ROWS = (torch.ops.aten.reshape.default, torch.ops.aten.view.default, torch.ops.aten.contiguous.default)


def join_operations(graph: Graph) -> None:
    """Puts together what our kernels compute together, and has cosines and sines computed once."""
    join_layers(graph)
    join_gates(graph)
    keep_turns(graph)


def join_layers(graph: Graph) -> None:
    """Has linear layers that read the same inputs computed together: inputs are made ready, and threads woken, once."""
    readers: dict[tuple[Node, int], list[Node]] = {}
    for node in graph.find_nodes(op="call_function", target=LINEAR[0]):
        readers.setdefault(_read(node), []).append(node)
    for nodes in readers.values():
        for first in range(0, len(nodes), len(LINEAR)):
            together = nodes[first : first + len(LINEAR)]
            if len(together) == 1:
                continue
            with graph.inserting_before(together[0]):
                layers = itertools.chain.from_iterable(node.args[1:] for node in together)
                joined = graph.call_function(LINEAR[len(together) - 1], (together[0].args[0], *layers))
                outputs = [graph.call_function(operator.getitem, (joined, place)) for place in range(len(together))]
            for node, output in zip(together, outputs, strict=True):
                output.meta = dict(node.meta)
                node.replace_all_uses_with(output)
                graph.erase_node(node)
            joined.meta["val"] = tuple(output.meta["val"] for output in outputs)


def join_gates(graph: Graph) -> None:
    """Has SiLU or GELU (by its hyperbolic tangent) of one layer's outputs, times another's, computed with both: by all
    threads, and of what each has just made."""
    for layers in graph.find_nodes(op="call_function", target=LINEAR[1]):
        for gate, up in itertools.permutations(map(_followed, list(layers.users))):
            activation, product = gate[-1], up[-1]
            if not (_is_gated(activation, product) and _are_alike(activation, up[-2], product)):
                continue
            first, second = (layers.args[1 + 4 * place : 5 + 4 * place] for place in (gate[0].args[1], up[0].args[1]))
            tanh = activation.target is torch.ops.aten.gelu.default
            with graph.inserting_before(layers):
                gated = graph.call_function(GATED, (layers.args[0], *first, *second, tanh))
            gated.meta = dict(gate[0].meta)
            gate[0].replace_all_uses_with(gated)
            product.replace_all_uses_with(activation.args[0])
            for node in (product, activation, *up[-2::-1], gate[0], layers):
                graph.erase_node(node)
            break


def _followed(node: Node) -> list[Node]:
    """The node, and what alone reads each in turn, up to the first that changes more than a shape."""
    nodes = [node]
    while len(nodes[-1].users) == 1:
        nodes += nodes[-1].users
        if nodes[-1].target not in _IN_ROWS:
            break
    return nodes


def _is_gated(activation: Node, product: Node) -> bool:
    """True for one of our kernels' activations, if that is only read where it is multiplied."""
    known = activation.target is torch.ops.aten.silu.default or (
        activation.target is torch.ops.aten.gelu.default and activation.kwargs.get("approximate") == "tanh"
    )
    return known and product.target is torch.ops.aten.mul.Tensor and list(activation.users) == [product]


def _are_alike(*nodes: Node) -> bool:
    """True if these have one shape, whatever the number of tokens: then each number is multiplied by its own one."""
    first, *rest = (node.meta["val"].shape for node in nodes)
    return all(statically_known_true(sym_eq(first, shape)) for shape in rest)


def keep_turns(graph: Graph) -> None:
    """Has cosines and sines of positions computed once: where they are read, in each layer and for each head, Inductor
    would compute them again."""
    for target in (torch.ops.aten.cos.default, torch.ops.aten.sin.default):
        for turn in graph.find_nodes(op="call_function", target=target):
            if turn.meta["val"].dtype == torch.float32 and turn.meta["val"].is_contiguous():
                with graph.inserting_after(turn):
                    kept = graph.call_function(COPY, (turn,))
                kept.meta = dict(turn.meta)
                turn.replace_all_uses_with(kept, lambda user, kept=kept: user is not kept)


def _read(node: Node) -> tuple[Node, int]:
    """What a linear layer reads, before it is put in rows, and their length: both say what the rows are."""
    source = node.args[0]
    length = int(source.meta["val"].shape[-1])
    while source.target in _IN_ROWS:
        source = source.args[0]
    return source, length
