"""Stop strings in text that arrives in pieces.

The module builds one Aho-Corasick automaton over all stop strings (Aho and Corasick 1975,
"Efficient string matching"). The automaton's state is the longest end of the text that could still
become a stop string. The caller must hold back exactly this end.
"""

from __future__ import annotations

from collections import deque


class StopStrings:
    """Finds the first complete stop string in a growing text. If several end at the same character,
    finds the longest.

    Attributes:
        found: length of the stop string that was found; 0 before.
    """

    def __init__(self, strings: tuple[str, ...]) -> None:
        """Build the automaton. `strings` are not empty; time and space are linear in them."""
        self._next: list[dict[str, int]] = [{}]
        self._depth = [0]
        self._fallback = [0]
        self._matched = [0]  # length of the longest stop string that ends in the state, or 0
        for string in strings:
            self._insert(string)
        self._link()
        self._state = 0
        self.found = 0

    @property
    def pending(self) -> int:
        """How many characters at the end of the text may yet belong to a stop string."""
        return self._depth[self._state]

    def feed(self, text: str) -> int | None:
        """Append `text`.

        Returns:
            Start of the first stop string, counted from the start of `text`; negative if the stop
            string began in earlier text. None if there is no stop string. Do not call this after a
            stop string was found.
        """
        state = self._state
        for position, char in enumerate(text):
            while char not in self._next[state] and state:
                state = self._fallback[state]
            state = self._next[state].get(char, 0)
            if self._matched[state]:
                self.found = self._matched[state]
                return position + 1 - self.found
        self._state = state
        return None

    def _insert(self, string: str) -> None:
        state = 0
        for char in string:
            if char not in self._next[state]:
                self._next[state][char] = len(self._next)
                self._next.append({})
                self._depth.append(self._depth[state] + 1)
                self._fallback.append(0)
                self._matched.append(0)
            state = self._next[state][char]
        self._matched[state] = len(string)

    def _link(self) -> None:
        queue = deque(self._next[0].values())
        while queue:
            state = queue.popleft()
            for char, child in self._next[state].items():
                fallback = self._fallback[state]
                while char not in self._next[fallback] and fallback:
                    fallback = self._fallback[fallback]
                self._fallback[child] = self._next[fallback].get(char, 0)
                self._matched[child] = self._matched[child] or self._matched[self._fallback[child]]
                queue.append(child)
