"""A run as tables: the rows are the rounds and the draft tokens of the trace."""

from dataclasses import replace

import pandas as pd
from handmade import a_run, a_tree, rounds_of

from specviz.records.metrics import tally
from specviz.records.tables import rounds_table, runs_table, tokens_table

RUN = a_run(rounds_of("aaa", "ard", "", "r"))


def test_the_table_of_rounds_has_one_row_a_target_pass():
    table = rounds_table(RUN)
    assert list(table["round"]) == [0, 1, 2, 3]
    assert list(table["drafted"]) == [3, 3, 0, 1]
    assert list(table["judged"]) == [3, 2, 0, 1]
    assert list(table["accepted"]) == [3, 1, 0, 0]
    assert list(table["next_kind"]) == ["bonus", "recovered", "bonus", "recovered"]
    assert "".join(table["text"]) == RUN.text
    parts = table[["draft_seconds", "verify_seconds", "accept_seconds"]].sum(axis=1)
    assert (parts - table["total_seconds"]).abs().max() < 1e-12


def test_the_table_of_tokens_has_one_row_a_draft_token():
    table = tokens_table(RUN)
    assert len(table) == 7
    second = table[table["round"] == 1]
    assert list(second["outcome"]) == ["accepted", "rejected", "discarded"]
    assert list(second["position"]) == [0, 1, 2] and list(second["parent"]) == [-1, 0, 1]
    discarded = second.iloc[2]
    assert pd.isna(discarded["u"]) and pd.isna(discarded["accept_prob"])
    assert list(second["p"]) == [token.p for token in RUN.rounds[1].drafted]


def test_the_tables_give_the_tallys_figures():
    counts, rounds, tokens = tally(RUN.rounds), rounds_table(RUN), tokens_table(RUN)
    assert rounds["accepted"].sum() / rounds["judged"].sum() == counts.acceptance_rate
    assert 1 + rounds["accepted"].mean() == counts.acceptance_length
    judged = tokens[tokens["outcome"] != "discarded"]
    rates = (judged["outcome"] == "accepted").groupby(judged["position"]).mean()
    assert list(rates) == counts.conditional_position_rates()


def test_a_run_without_rounds_is_two_empty_tables():
    empty = a_run(())
    assert len(rounds_table(empty)) == len(tokens_table(empty)) == 0


def test_a_trees_tokens_stand_at_their_depth_and_name_their_parent():
    tree = a_tree((-1, -1, 0, 1), 0, seed=3, sources=("head 1", "head 1", "head 2", "head 2"))
    table = tokens_table(a_run((tree,)))
    assert list(table["position"]) == [0, 0, 1, 1]
    assert list(table["token"]) == [0, 1, 2, 3] and list(table["parent"]) == [-1, -1, 0, 1]
    assert list(table["source"]) == [token.source for token in tree.drafted]


def test_the_table_of_runs_compares_with_the_plain_run_of_the_same_prompt():
    hostile = "<script>hit()</script>"
    plain, other = a_run(rounds_of("", "", "")), a_run(rounds_of("a"), prompt="Another", drafter=hostile)
    other = replace(other, prompt=replace(other.prompt, ids=(1,)))
    table = runs_table([RUN, plain, other])
    assert list(table["drafter"]) == ["draft_model", "plain", hostile]
    assert table["acceptance_rate"][0] == tally(RUN.rounds).acceptance_rate and pd.isna(table["acceptance_rate"][1])
    assert table["speedup"][0] == tally(RUN.rounds).tokens_per_second / tally(plain.rounds).tokens_per_second
    assert table["speedup"][1] == 1 and pd.isna(table["speedup"][2])
    assert hostile not in table._repr_html_(), "a notebook gets it escaped"
