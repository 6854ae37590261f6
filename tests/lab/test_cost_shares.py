"""Who causes the cost: each tool, and each kind of text."""

from __future__ import annotations

import pytest
from histories import assistant, tool_result, tool_use, user

from ctxpipe import TokenCounter
from ctxpipe.lab.cost_shares import Exchange, cost_shares, total_shares
from ctxpipe.lab.costs import CacheUse, Request, bill
from ctxpipe.lab.report import CostShare
from ctxpipe.messages import Message
from ctxpipe.prices import Cliff, Prices

PRICES = Prices(2.0, 3.0, 4.0, 1.0, 10.0)
COUNTER = TokenCounter()

ASK = user("Read them both.")
CALL = assistant(tool_use("t1", "Read", {"path": "a.py"}))
RESULT = user(tool_result("t1", "x = 1\n" * 50))
ANSWER = assistant("Done.")


def tokens(*messages: Message) -> float:
    return float(sum(map(COUNTER.message, messages)))


def request(use: CacheUse, *reply: Message) -> Request:
    return Request(0, "reply", use, tokens(*reply))


def by_name(shares: tuple[CostShare, ...]) -> dict[str, CostShare]:
    return {share.name: share for share in shares}


def test_the_front_of_a_prompt_is_billed_as_read_and_the_rest_as_written():
    use = CacheUse(tokens(ASK, CALL), tokens(RESULT), 0.0)
    exchange = Exchange(request(use, ANSWER), [ASK, CALL, RESULT], [ANSWER])

    shares = by_name(cost_shares([exchange], COUNTER, PRICES))

    assert shares["user text"].cost == tokens(ASK) * PRICES.read
    assert shares["Read"].cost == tokens(CALL) * PRICES.read + tokens(RESULT) * PRICES.write
    assert shares["assistant text"].cost == tokens(ANSWER) * PRICES.output


@pytest.mark.parametrize("read", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("cliffs", [(), (Cliff(10, 2.0, 1.5),)])
def test_the_shares_add_up_to_the_bill(read: float, cliffs: tuple[Cliff, ...]):
    prices = Prices(2.0, 3.0, 4.0, 1.0, 10.0, cliffs=cliffs)
    whole = tokens(ASK, CALL, RESULT)
    rest = (1 - read) * whole
    sent = request(CacheUse(read * whole, 0.75 * rest, 0.25 * rest), ANSWER)

    shares = cost_shares([Exchange(sent, [ASK, CALL, RESULT], [ANSWER])], COUNTER, prices)

    assert sum(share.cost for share in shares) == pytest.approx(bill([sent], prices).total)


def test_a_text_counts_once_but_is_sent_with_every_prompt():
    use = CacheUse(0.0, 0.0, tokens(ASK, CALL, RESULT))
    exchange = Exchange(request(use), [ASK, CALL, RESULT])

    [read] = [one for one in cost_shares([exchange] * 3, COUNTER, PRICES) if one.name == "Read"]

    assert read.calls == 1
    assert read.tokens == tokens(CALL, RESULT)
    assert read.sent == 3 * read.tokens


def test_a_request_for_a_summary_is_the_summaries_own():
    summary = Request(0, "summary", CacheUse(100.0, 0.0, 20.0), 30.0)

    [share] = cost_shares([Exchange(summary)], COUNTER, PRICES)

    assert share.name == "summaries, notes and restored files"
    assert (share.sent, share.cost) == (120.0, bill([summary], PRICES).total)


def test_the_most_expensive_comes_first_over_several_conversations():
    first = [CostShare("Read", 1, 10.0, 20.0, 3.0), CostShare("Bash", 2, 5.0, 5.0, 2.0)]
    second = [CostShare("Bash", 1, 1.0, 1.0, 2.0)]

    assert total_shares([first, second]) == (
        CostShare("Bash", 3, 6.0, 6.0, 4.0),
        CostShare("Read", 1, 10.0, 20.0, 3.0),
    )
