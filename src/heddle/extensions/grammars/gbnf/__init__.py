"""llama.cpp's grammars (GBNF): their syntax, and their translation to llguidance's Lark."""
