"""How the types of public names are judged."""

from __future__ import annotations

from type_coverage import faults, public_names


def test_public_names_are_those_of_their_modules() -> None:
    names = public_names()
    assert "heddle.engine.llm.LLM" in names
    assert "heddle.errors.ConfigError" in names


def test_a_public_name_without_a_type_is_named() -> None:
    missing, partial = "Type is missing type annotation and more", "Type is partially unknown"
    symbols = [
        {"name": name, "diagnostics": [{"message": f"{text}\n  by A"}]}
        for name, text in [
            ("a.B", partial),
            ("a.B.c", missing),
            ("a.Bee.c", missing),
            ("z.B.c", missing),
            ("a.B.d", 'Type unknown for variable "d"'),
        ]
    ]
    assert faults(symbols, ["a.B"]) == [f"a.B.c: {missing}", 'a.B.d: Type unknown for variable "d"']
