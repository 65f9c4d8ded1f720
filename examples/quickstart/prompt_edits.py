"""The edits that the simulated optimiser draws from: what people write into prompts, useful or not.

Which of them help is nowhere said; that is for the search to find out.
"""

EDITS = (
    "You are a helpful assistant.",
    "You are an expert with many years of experience.",
    "Be polite.",
    "Use plain language.",
    "Avoid jargon.",
    "Answer in English.",
    "Stay on topic.",
    "Do not repeat the question.",
    "If something is unclear, say so.",
    "Use Markdown where it helps.",
    "Write for a reader in a hurry.",
    "Keep the reader's point of view in mind.",
    "Use the tools that you are given before you reply.",
    "Rely on facts that you looked up, and never guess.",
    "What you can look up, look up.",
    "Go through the request one item at a time.",
    "First list all that is asked for.",
    "Make sure that each part of the request is covered.",
    "Work step by step.",
    "Show the calculation before the result.",
    "Verify the result before you send it.",
    'End with a line that reads "Answer:" and then the bare number.',
    'Put the result on the last line, after the word "Answer:".',
    'Finish with "Answer:" and the result, and nothing after it.',
    "Be brief.",
    "Reply in one short sentence.",
    "Rely on what you already know.",
    "Round numbers, so that they are easy to read.",
    "A good estimate is enough.",
    "Say goodbye in a friendly way.",
    "Close with an offer of further help.",
)
