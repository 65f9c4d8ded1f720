"""A simulated model that prices orders. It is unreliable in four ways, and how it is asked changes how much.

Whether it gets a thing right is drawn by a hash of the whole prompt and the request's seed. So the same request gives
the same reply, and two prompts that differ in a word make different mistakes.
"""

import json
import re

from local_endpoint import ChatRequest, ToolCall
from price_list import in_dollars
from skill import Skill

QUESTION = re.compile(r"What do (.+?) cost together\?")
ITEM = re.compile(r"(\d+) (\w+?)s?\b")


LOOKS_UP = Skill.of(
    "looks prices up instead of guessing them",
    0.7,
    0.97,
    helps=r"\btools?\b|\blook(ed)? (it |them )?up|\bnever guess",
    hurts=r"from memory|what you already know|\bestimates?\b",
)
COVERS_ALL = Skill.of(
    "covers every product of the order",
    0.75,
    0.97,
    helps=r"one (part|item|product) at a time|each part|\beverything\b|leave nothing out|list all",
    hurts=r"\bmain (point|part)s?\b|\bbrief\b|one short sentence",
)
ADDS_UP = Skill.of(
    "multiplies and adds correctly",
    0.75,
    0.96,
    helps=r"step by step|show (your|the) (work|calculation)|\b(check|verify)\b.*\b(result|calculation|numbers)",
    hurts=r"\bquick(ly)?\b|\bround\b|one short sentence",
)
ENDS_WITH_ANSWER = Skill.of(
    "ends with the answer in the form that was asked for",
    0.7,
    0.98,
    helps=r"answer:",
    hurts=r"goodbye|further help|follow-up question",
)


def answer(request: ChatRequest) -> str | list[ToolCall]:
    """Reply like a model would that has some of the skills, some of the time."""
    prompt, seed = request.prompt, request.seed
    question = QUESTION.search(prompt)
    if question is None:
        return "I see no order in this message. What would you like to buy?"
    order = {product: int(number) for number, product in ITEM.findall(question[1])}
    if len(order) > 1 and not COVERS_ALL.shown(prompt, seed):
        order.popitem()
    if LOOKS_UP.shown(prompt, seed) and not request.tool_results:
        return [ToolCall("look_up_price", {"product": product}) for product in order]
    guesses = {product: 100 * len(product) for product in order}
    prices = guesses | _prices(request.tool_results)
    total = sum(number * prices[product] for product, number in order.items())
    if not ADDS_UP.shown(prompt, seed):
        total += 100
    if ENDS_WITH_ANSWER.shown(prompt, seed):
        return f"I added up {len(order)} products.\nAnswer: {in_dollars(total)}"
    return f"Together that is {in_dollars(total)} dollars, at the prices of today."


def _prices(tool_results: list[str]) -> dict[str, int]:
    results = [json.loads(result) for result in tool_results]
    return {found["product"]: round(100 * float(found["price"])) for found in results if "price" in found}
