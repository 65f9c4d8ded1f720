"""Two real SQLite databases, questions about them in words, and the query that answers each."""

import random
import sqlite3
from collections import Counter
from contextlib import closing
from functools import cache
from typing import TypedDict

SCHEMAS = {
    "concerts": """
CREATE TABLE singer (id INTEGER PRIMARY KEY, name TEXT, country TEXT, age INTEGER);
CREATE TABLE concert (id INTEGER PRIMARY KEY, title TEXT, year INTEGER, stadium TEXT);
CREATE TABLE performs (singer_id INTEGER REFERENCES singer, concert_id INTEGER REFERENCES concert);
INSERT INTO singer VALUES (1,'Ada Moreau','France',31),(2,'Ben Okoro','Nigeria',45),(3,'Chloe Petit','France',27),
 (4,'Dan Weiss','Germany',52),(5,'Eva Lund','Sweden',38),(6,'Farid Aziz','France',41);
INSERT INTO concert VALUES (1,'Spring Night',2022,'Arena'),(2,'Harbour Songs',2023,'Dock Hall'),
 (3,'Winter Lights',2023,'Arena'),(4,'Open Air',2024,'Park');
INSERT INTO performs VALUES (1,1),(2,1),(3,2),(1,3),(4,3),(5,3),(6,4),(1,4);""",
    "pets": """
CREATE TABLE student (id INTEGER PRIMARY KEY, name TEXT, major TEXT, age INTEGER);
CREATE TABLE pet (id INTEGER PRIMARY KEY, kind TEXT, weight REAL, owner_id INTEGER REFERENCES student);
INSERT INTO student VALUES (1,'Ines','Biology',20),(2,'Jon','Physics',22),(3,'Kim','Biology',21),(4,'Lea','History',25),
 (5,'Mo','Physics',19);
INSERT INTO pet VALUES (1,'cat',4.2,1),(2,'dog',18.0,1),(3,'cat',3.9,2),(4,'dog',25.5,4),(5,'bird',0.3,3);""",
}

_CONCERTS = (
    ("How many singers are there?", "SELECT COUNT(*) FROM singer"),
    ("What are the names of the singers from France?", "SELECT name FROM singer WHERE country = 'France'"),
    ("What is the average age of the singers?", "SELECT AVG(age) FROM singer"),
    ("Who is the oldest singer?", "SELECT name FROM singer ORDER BY age DESC LIMIT 1"),
    ("How many singers does each country have?", "SELECT country, COUNT(*) FROM singer GROUP BY country"),
    ("Which concerts were in 2023?", "SELECT title FROM concert WHERE year = 2023"),
    ("How many concerts were in each year?", "SELECT year, COUNT(*) FROM concert GROUP BY year"),
    (
        "Which singers performed in more than one concert?",
        "SELECT name FROM singer JOIN performs ON singer_id = id GROUP BY id HAVING COUNT(*) > 1",
    ),
    (
        "Who performed in Winter Lights?",
        "SELECT name FROM singer JOIN performs ON singer_id = singer.id JOIN concert ON concert_id = concert.id "
        "WHERE title = 'Winter Lights'",
    ),
    ("Which stadiums had more than one concert?", "SELECT stadium FROM concert GROUP BY stadium HAVING COUNT(*) > 1"),
)
_PETS = (
    ("How many pets are heavier than 4?", "SELECT COUNT(*) FROM pet WHERE weight > 4"),
    ("What is the weight of the heaviest dog?", "SELECT MAX(weight) FROM pet WHERE kind = 'dog'"),
    ("Which students have no pet?", "SELECT name FROM student WHERE id NOT IN (SELECT owner_id FROM pet)"),
    (
        "What are the names of the students who have a cat?",
        "SELECT name FROM student JOIN pet ON owner_id = student.id WHERE kind = 'cat'",
    ),
    ("How many students does each major have?", "SELECT major, COUNT(*) FROM student GROUP BY major"),
    ("Who is the youngest student?", "SELECT name FROM student ORDER BY age LIMIT 1"),
    ("What is the average weight of each kind of pet?", "SELECT kind, AVG(weight) FROM pet GROUP BY kind"),
    (
        "Which majors have students with dogs?",
        "SELECT DISTINCT major FROM student JOIN pet ON owner_id = student.id WHERE kind = 'dog'",
    ),
    ("How many different kinds of pets are there?", "SELECT COUNT(DISTINCT kind) FROM pet"),
    (
        "How many pets does each student with a pet have?",
        "SELECT name, COUNT(*) FROM student JOIN pet ON owner_id = student.id GROUP BY student.id",
    ),
)


class Question(TypedDict):
    """One sample."""

    database: str
    question: str
    gold: str
    """A query that answers it."""


QUESTIONS: tuple[Question, ...] = tuple(
    {"database": database, "question": question, "gold": gold}
    for database, pairs in (("concerts", _CONCERTS), ("pets", _PETS))
    for question, gold in pairs
)


@cache
def shuffled() -> tuple[Question, ...]:
    """Return the questions in an order that mixes the databases."""
    return tuple(random.Random(5).sample(QUESTIONS, len(QUESTIONS)))


def train() -> list[Question]:
    """Return the questions to learn from."""
    return list(shuffled()[:6])


def val() -> list[Question]:
    """Return the questions to choose prompts by."""
    return list(shuffled()[6:])


READING = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE}
LIMITS = {
    sqlite3.SQLITE_LIMIT_LENGTH: 1_000,  # bytes of a value; with the steps it bounds the memory
    sqlite3.SQLITE_LIMIT_COLUMN: 100,
    sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH: 50,  # a comparison is one step, however long it takes
}
MAX_STEPS = 100_000
MAX_ROWS = 1_000


def connect(database: str) -> sqlite3.Connection:
    """Return a database of its own, in memory, for a query that a model wrote.

    It can only be read: no files, no settings. A query of more than 100,000 steps, or with a value of more than
    1,000 bytes, is an error.
    """
    connection = sqlite3.connect(":memory:", check_same_thread=False)
    connection.executescript("PRAGMA temp_store = MEMORY;" + SCHEMAS[database])  # else what is sorted goes to a file
    connection.set_authorizer(lambda action, *_: sqlite3.SQLITE_OK if action in READING else sqlite3.SQLITE_DENY)
    connection.set_progress_handler(lambda: True, MAX_STEPS)
    for limit, most in LIMITS.items():
        connection.setlimit(limit, most)
    return connection


def schema(database: str) -> str:
    """Return the statements that make the tables."""
    return "\n".join(line for line in SCHEMAS[database].strip().splitlines() if line.startswith("CREATE"))


def same_rows(database: str, query: str, gold: str) -> bool:
    """Whether two queries give the same rows: in that order where the right one sorts, else in any."""
    right = _rows(database, gold)
    try:
        got = _rows(database, query)
    except (sqlite3.Error, sqlite3.Warning):
        return False
    if "ORDER BY" in gold:
        return got == right
    return Counter(got) == Counter(right)


def _rows(database: str, query: str) -> list[tuple[object, ...]]:
    """Run a query."""
    with closing(connect(database)) as connection:
        rows = connection.execute(query).fetchmany(MAX_ROWS + 1)
    if len(rows) > MAX_ROWS:
        raise sqlite3.DataError(f"the query gives more than {MAX_ROWS} rows")
    return rows
