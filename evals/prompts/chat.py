"""Six chat prompts of unlike kinds: a drafter guesses code well and a story badly, so one kind alone would mislead.

Their texts are part of every workload hash. Changing one makes new reports incomparable with old ones, on purpose.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

CHAT_PROMPTS: Mapping[str, str] = MappingProxyType(
    {
        "code": (
            "Write a Python class that keeps the most recently used items of a key-value store and drops the oldest "
            "one once a limit is reached. Give it get, put and delete methods, type hints and short docstrings, and "
            "then show a small example of its use with the expected output in comments."
        ),
        "advice": (
            "My neighbour practises the drums every evening until ten, and I have to get up at five in the morning. "
            "We have always been on good terms and I want it to stay that way. How should I bring it up, what could "
            "I offer in return, and what should I avoid saying?"
        ),
        "story": (
            "Tell a story about a lighthouse keeper who finds a letter that was posted forty years ago and is "
            "addressed to someone with the keeper's own name. Begin in the middle of a storm, let a second person "
            "arrive by boat, and leave the last question open."
        ),
        "explanation": (
            "Explain to a curious fourteen-year-old why the sky is blue at noon but red in the evening, although the "
            "sunlight is the same. Use one everyday comparison, do not use any formula, and say at the end what is "
            "different on Mars."
        ),
        "facts": (
            "List ten facts about the river Danube: its source and mouth, its length, the countries and four "
            "capitals along it, two of its tributaries, the canal that links it to the Main, and what it is used "
            "for today. Number them and keep each to one sentence."
        ),
        "summary": (
            "Summarise the following notes in five bullet points for someone who missed the meeting. Notes: The "
            "bakery on Mill Street wants to open two hours earlier from April. The landlord agrees if deliveries "
            "stay after six. Two bakers would take the early shift for a higher hourly rate; a third asked for more "
            "time to think. The oven was serviced in January and the technician advised replacing the door seal "
            "before summer. Flour will cost eight percent more from March, and the supplier offered a fixed price "
            "for a year if we order monthly. Customers asked twice for a card reader. Nobody wants to raise the "
            "price of plain rolls. The next meeting is on the second Tuesday of the month."
        ),
    }
)
