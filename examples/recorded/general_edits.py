"""The edits that the optimiser draws from: general advice, by topic, written without regard to the task."""

EDITS_BY_TOPIC = {
    "who speaks": (
        "You are a helpful assistant.",
        "You are an expert in your field.",
        "You are a patient teacher.",
        "You are taking part in an exam.",
        "Act as a careful reviewer.",
    ),
    "tone": (
        "Be polite.",
        "Use plain language.",
        "Write in complete sentences.",
        "Avoid jargon.",
        "Answer in English.",
        "Keep a neutral tone.",
        "Be confident.",
        "Do not apologise.",
    ),
    "brevity": (
        "Be concise.",
        "Reply with the answer only.",
        "Do not add any explanation.",
        "Keep the reply under 200 words.",
    ),
    "form": (
        "Use Markdown.",
        "Use a numbered list where it helps.",
        "Put the result on the last line.",
        "Name the option by its letter where it has one.",
        "Do not repeat the question.",
        "Use no emoji.",
    ),
    "how to go about it": (
        "Be thorough.",
        "Think step by step.",
        "Explain your reasoning before you give the answer.",
        "Work it out before you answer.",
        "Show your work.",
        "Break the problem into parts and walk through them.",
        "Read the question twice.",
        "Pay attention to details.",
        "Ignore what does not matter.",
        "Do not make assumptions.",
        "Look out for trick questions.",
    ),
    "care": (
        "Check your answer.",
        "If you are not sure, choose the most likely option.",
        "This is very important to me.",
        "Take a deep breath.",
    ),
}

EDITS = tuple(edit for edits in EDITS_BY_TOPIC.values() for edit in edits)
