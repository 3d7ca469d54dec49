"""Languages of grammars beside JSON schemas and Lark, and the fields of requests that hold them."""

from heddle.doors import Extension

EXTENSION = Extension(
    grammars={
        "regex": "heddle.extensions.grammars.languages:Regex",
        "choice": "heddle.extensions.grammars.languages:Choice",
        "gbnf": "heddle.extensions.grammars.languages:Gbnf",
        "structural_tag": "heddle.extensions.grammars.languages:StructuralTag",
    },
    formats={"structural_tag": "heddle.extensions.grammars.fields:STRUCTURAL_TAG"},
    constraints=("heddle.extensions.grammars.fields:FIELDS",),
)
