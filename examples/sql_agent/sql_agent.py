"""An agent that answers a question with SQL: it writes a query, tries it, and repairs it where that fails."""

import os
import re
import sqlite3
import ssl

from databases import Question, connect, same_rows, schema
from lightning_agentos import PolicyViolationError, governed
from openai import AsyncOpenAI, DefaultAsyncHttpxClient

from lightning_core import PromptTemplate, emit_message, rollout

MODEL = os.environ.get("AGL_SQL_MODEL", "gpt-4.1-mini")
TRIES = 3
CODE = re.compile(r"```(?:sql)?\s*(.*?)```", re.DOTALL)
TLS = ssl.create_default_context()  # loading the certificates takes 20 ms, and a client is made for every task


@governed
def run_sql(database: str, query: str) -> str:
    """Run a query; return its rows, or what is wrong with it."""
    connection = connect(database)
    try:
        return f"rows: {connection.execute(query).fetchmany(5)}"
    except (sqlite3.Error, sqlite3.Warning) as exc:
        return f"error: {exc}"
    finally:
        connection.close()


@rollout
async def answer(task: Question, prompt_template: PromptTemplate) -> str:
    """Return the query that the agent ends with; `execution_accuracy` scores it."""
    prompt = prompt_template.format(schema=schema(task["database"]), question=task["question"])
    query = ""
    async with AsyncOpenAI(http_client=DefaultAsyncHttpxClient(verify=TLS)) as client:
        for _ in range(TRIES):
            completion = await client.chat.completions.create(
                model=MODEL, messages=[{"role": "user", "content": prompt}], temperature=0
            )
            reply = completion.choices[0].message.content or ""
            fenced = CODE.search(reply)
            query = (fenced[1] if fenced else reply).strip()
            try:
                outcome = run_sql(task["database"], query)
            except PolicyViolationError as exc:
                outcome = f"error: {exc.reason}"
            emit_message(f"{query}\n-- {outcome}")
            if not outcome.startswith("error"):
                break
            prompt += f"\n\nYou wrote:\n{query}\nThat gave: {outcome}\nWrite another query."
    return query


def execution_accuracy(task: Question, result: str) -> float:
    """Return 1 where the query gives the rows of the right one, else 0."""
    return float(same_rows(task["database"], result, task["gold"]))
